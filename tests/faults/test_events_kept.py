"""A peer that comes and goes, or lies, as often as it can: a real daemon's event log keeps what matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from p2psgd.storage.event_log import PEER_BURST, EventReader
from p2psgd.wire.messages import FrontierRow
from tests.daemons import until
from tests.faults.target import Target, forged_update
from tests.stranger import status_of

pytestmark = pytest.mark.long

OFTEN = 4 * PEER_BURST


def events(target: Target, kind: str, node: int) -> Iterator[dict[str, Any]]:
    with EventReader(target.daemon.state) as reader:
        return (
            event for event in reader.kept() if (event["kind"], event.get("id")) == (kind, f"{node:016x}")
        )


def held_back(target: Target) -> int:
    return int(target.status()["events"]["held_back"])


def test_links_of_a_peer_that_comes_and_goes_are_counted_and_not_all_kept(target: Target) -> None:
    before = held_back(target)
    for _ in range(OFTEN):
        target.stranger(31).close()
    until(lambda: held_back(target) >= before + 2 * (OFTEN - PEER_BURST), "each link and each end is counted")
    for kind in ("link", "lost"):
        assert len(list(events(target, kind, 31))) == PEER_BURST


def test_alarms_over_a_peer_that_lies_are_counted_and_not_all_kept(target: Target) -> None:
    honest = target.stranger(32)
    honest.socket.sendall(forged_update(honest, [1, 2]))
    until(lambda: target.frontier().get(32) == 1, "its update is applied")
    honest.close()
    before = held_back(target)
    for _ in range(OFTEN):
        assert target.code_of_refusal(33, status_of(FrontierRow(32, 1, 1, 77))) == "digest"
    assert held_back(target) >= before + OFTEN - PEER_BURST
    assert len(list(events(target, "alarm", 33))) == PEER_BURST
