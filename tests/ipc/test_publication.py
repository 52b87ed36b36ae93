from __future__ import annotations

import pytest

from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX, pack_steps, published


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("of_send", [0, 1, 2, SEND_STEPS_MAX])
@pytest.mark.parametrize("before", [0, 1, 77, 2**52])
def test_whether_a_send_was_published_follows_from_the_half(before: int, of_send: int, half: int) -> None:
    packed = pack_steps(before + of_send, of_send, half)
    assert packed < 2**64
    assert published(packed, half) == before + of_send
    assert published(packed, 1 - half) == before
