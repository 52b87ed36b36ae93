from __future__ import annotations

from typing import Any

import pytest

from p2psgd.cli.top import LOSSES_MAX, History
from p2psgd.observe.status import NodeStatus
from tests.observe.statuses import peer, status, trainer

ME = "00112233aabbccdd"


def at(seconds: float, **changes: Any) -> NodeStatus:
    """A node that makes 10 updates a second and sends its peer 1 kB in each."""
    made = int(10 * seconds)
    rows = [{"id": ME, "incarnation": life, "sequence": count} for life, count in ((1, 500), (2, made))]
    return status(
        frontier=rows,
        trainer=trainer(steps=2 * made),
        bytes={"sent": 1000 * made, "received": 500 * made},
        peers=[peer("node-1", id="id-1", bytes_sent=1000 * made, bytes_received=500 * made)],
        **changes,
    )


def test_rates_are_differences_over_the_last_seconds() -> None:
    history = History(every_s=1.0)
    for second in range(20):
        history.add(at(float(second)), 100.0 + second)
    assert history.rates() == {
        "steps": 20.0,
        "sent": 10_000.0,
        "received": 5_000.0,
        "sent id-1": 10_000.0,
        "received id-1": 5_000.0,
        f"updates {ME}": 10.0,
    }
    history.add(at(19.0), 120.0)  # it has stopped
    for second in range(1, 7):
        history.add(at(19.0), 120.0 + second)
    assert history.rates()["sent"] == 0.0


def test_one_status_or_a_peer_that_is_new_has_no_rates() -> None:
    history = History(every_s=1.0)
    assert history.rates() == {}
    history.add(status(peers=[], frontier=[]), 1.0)
    assert history.rates() == {}
    history.add(at(2.0), 2.0)
    assert set(history.rates()) == {"steps", "sent", "received"}


@pytest.mark.parametrize("change", [{"incarnation": 9}, {"pid": 9}, {"id": "9"}])
def test_a_daemon_that_was_started_again_counts_anew(change: dict[str, Any]) -> None:
    history = History(every_s=1.0)
    history.add(at(1000.0), 1.0)
    history.add(at(0.0, **change), 2.0)
    assert history.rates() == {}
    history.add(at(1.0, **change), 3.0)
    assert history.rates()["sent"] == 10_000.0


def test_what_is_kept_is_bounded() -> None:
    history = History(every_s=1.0)
    for second in range(3 * LOSSES_MAX):
        history.add(at(float(second)), 0.001 * second)
    assert len(history.losses) == LOSSES_MAX


def test_a_daemon_that_is_gone_or_silent_is_told_with_how_long_it_has_been() -> None:
    history = History(every_s=1.0)
    history.add(at(1.0), 100.0)
    assert history.trouble(104.0) == ""
    assert history.trouble(110.0) == "the daemon has not answered for 10 s"
    for second in (111.0, 112.0):
        history.add(OSError("gone"), second)
    assert history.trouble(119.0).endswith("Z (8 s), trying again")
    assert history.status is not None
    history.add(at(2.0), 120.0)
    assert history.trouble(121.0) == ""
