from __future__ import annotations

from typing import Any

import pytest

from p2psgd.cli.top_picture import LOSSES_MAX, Rates, Recent
from p2psgd.observe.status import NodeStatus
from tests.observe.statuses import peer, status, trainer

ME = "00112233aabbccdd"


def at(seconds: float, **changes: Any) -> NodeStatus:
    """A node that makes 10 updates a second and sends its peer 1 kB in each."""
    made = int(10 * seconds)
    rows = [{"id": ME, "incarnation": life, "sequence": count} for life, count in ((1, 500), (2, made))]
    return status(
        frontier=rows,
        trainer=trainer(mini_batches=2 * made),
        bytes={"sent": 1000 * made, "received": 500 * made},
        peers=[peer("node-1", id="id-1", bytes_sent=1000 * made, bytes_received=500 * made)],
        **changes,
    )


def test_rates_are_differences_over_the_last_seconds() -> None:
    recent = Recent()
    for second in range(20):
        recent.add(at(float(second)), 100.0 + second)
    rates = recent.rates()
    assert rates == Rates(
        steps=20.0,
        sent=10_000.0,
        received=5_000.0,
        peers={"id-1": (10_000.0, 5_000.0)},
        updates={ME: 10.0},
    )
    recent.add(at(19.0), 120.0)  # it has stopped
    for second in range(1, 7):
        recent.add(at(19.0), 120.0 + second)
    assert recent.rates().sent == 0.0


def test_one_status_or_a_peer_that_is_new_has_no_rates() -> None:
    recent = Recent()
    assert recent.rates() == Rates()
    recent.add(status(peers=[], frontier=[]), 1.0)
    assert recent.rates() == Rates()
    recent.add(at(2.0), 2.0)
    assert recent.rates().peers == {}
    assert recent.rates().updates == {}


@pytest.mark.parametrize("change", [{"incarnation": 9}, {"pid": 9}, {"id": "9"}])
def test_a_daemon_that_was_started_again_counts_anew(change: dict[str, Any]) -> None:
    recent = Recent()
    recent.add(at(1000.0), 1.0)
    recent.add(at(0.0, **change), 2.0)
    assert recent.rates() == Rates()
    recent.add(at(1.0, **change), 3.0)
    assert recent.rates().sent == 10_000.0


def test_what_is_kept_is_bounded() -> None:
    recent = Recent()
    for second in range(3 * LOSSES_MAX):
        recent.add(at(float(second)), 0.001 * second)
    assert len(recent.losses) == LOSSES_MAX


def test_a_wait_is_told_with_how_long_it_was_seen_numbers_aside() -> None:
    recent = Recent()
    assert recent.waiting_for("waits for 1,200 of node-1", 10.0) == "waits for 1,200 of node-1"
    words = recent.waiting_for("waits for 900 of node-1", 15.0)
    assert words == "waits for 900 of node-1 (for 5 s or longer)"
    assert recent.waiting_for("waits for 900 of node-2", 16.0) == "waits for 900 of node-2"
    assert recent.waiting_for("", 17.0) == ""
    assert recent.waiting_for("silent for 5 s", 18.0) == "silent for 5 s"
    assert recent.waiting_for("silent for 9 s", 22.0) == "silent for 9 s"
