from __future__ import annotations

from p2psgd.ipc import layout


def test_the_layout_has_room_for_several_of_the_largest_updates() -> None:
    for weights in (1, 1000, 14_600_000, 2**31):
        longest = layout.outbox_entry_bytes_max(weights)
        assert layout.outbox_bytes(weights) >= 4 * longest
        assert layout.outbox_bytes(weights).bit_count() == layout.inbox_bytes(weights).bit_count() == 1
    assert layout.inbox_bytes(14_600_000) <= 32 * 2**20
