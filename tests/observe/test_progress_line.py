from __future__ import annotations

from p2psgd.observe.text import progress_line
from tests.observe.statuses import bare, lost, peer, ring, status, trainer


def test_sums_and_ranges_over_the_nodes() -> None:
    slower = status("node-1", trainer=trainer(steps=900, loss=1.3456), peers=[peer("node-0", lag=7)])
    assert progress_line([status(), slower]) == (
        "2 training, steps 900 to 1,000, 13,086 samples/s, loss 1.846, 12.0 bits per index, "
        "compression 2027x, largest lag 7"
    )


def test_before_anything_happened_only_states_are_known() -> None:
    assert progress_line([bare("node-0"), bare("node-1")]) == "2 starting"


def test_nodes_that_wait_for_the_same_share_a_sentence() -> None:
    waiting = trainer(steps=0, samples_per_s=None, loss=None, waits="share 0 trains alone")
    line = progress_line([status(), status("node-1", trainer=waiting), status("node-2", trainer=waiting)])
    assert line.endswith("; node-1 and node-2: share 0 trains alone")


def test_nobody_waits_for_a_lost_node() -> None:
    line = progress_line([status(peers=[peer("node-1", lag=500)]), lost("node-1")])
    assert line.startswith("1 training, 1 lost, step 1,000, ")
    assert "lag" not in line


def test_a_ring_is_told_with_its_round_and_without_lags() -> None:
    line = progress_line([status(ring=ring(), peers=[peer("node-1", lag=7)])])
    assert line.endswith("compression 2133x; round 1,234; ring node-0 > node-1 > node-2")
