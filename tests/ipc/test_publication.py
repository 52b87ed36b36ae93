from __future__ import annotations

import pytest

from p2psgd.ipc.ring_buffer import POSITION, half_after, pack_head, published


@pytest.mark.parametrize("steps", [0, 1, 2, 2**62 + 1])
@pytest.mark.parametrize("position", [0, 8, 2**40])
def test_a_head_holds_a_position_and_the_half_of_its_mini_batch(position: int, steps: int) -> None:
    head = pack_head(position, steps)
    assert (head & POSITION, head & 1) == (position, half_after(steps))
    assert half_after(steps) != half_after(steps + 1)


@pytest.mark.parametrize("steps", [1, 2, 77])
def test_whether_a_mini_batch_was_published_follows_from_the_half(steps: int) -> None:
    assert published(steps, half_after(steps)) == steps
    assert published(steps, half_after(steps - 1)) == steps - 1
