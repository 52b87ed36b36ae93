"""Rejections by reason."""

from __future__ import annotations

from p2psgd.net.rejections import REASONS_MAX, TOLD_KINDS_MAX, DropCounters


def test_reasons_that_peers_invent_leave_room_for_this_nodes_own() -> None:
    reasons = DropCounters()
    for number in range(1000):
        reasons.count_told("rejected by peer", f"invented {number}")
        reasons.count_told("hint", f"invented {number}")
    reasons.count_told("rejected by peer", "invented 0")
    reasons.count("no greeting")
    assert len(reasons) == TOLD_KINDS_MAX + 3
    assert reasons["rejected by peer: invented 0"] == 2
    assert reasons["rejected by peer: other"] == reasons["hint: other"] == 1000 - TOLD_KINDS_MAX // 2
    assert reasons["no greeting"] == 1


def test_reasons_are_bounded_in_number_and_length() -> None:
    reasons = DropCounters()
    reasons.count_told("hint", "x" * 1000)
    for number in range(2 * REASONS_MAX):
        reasons.count(f"reason {number}")
    assert len(reasons) == REASONS_MAX
    assert max(map(len, reasons)) <= 40
