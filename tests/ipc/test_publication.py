from __future__ import annotations

import pytest

from p2psgd.ipc.ring_buffer import POSITION, half_after, pack_head, published


@pytest.mark.parametrize("mini_batch", [0, 1, 2, 2**62 + 1])
@pytest.mark.parametrize("position", [0, 8, 2**40])
def test_a_head_holds_a_position_and_the_half_of_its_mini_batch(position: int, mini_batch: int) -> None:
    head = pack_head(position, mini_batch)
    assert (head & POSITION, head & 1) == (position, half_after(mini_batch))
    assert half_after(mini_batch) != half_after(mini_batch + 1)


@pytest.mark.parametrize("mini_batch", [1, 2, 77])
def test_whether_a_mini_batch_was_published_follows_from_the_half(mini_batch: int) -> None:
    assert published(mini_batch, half_after(mini_batch)) == mini_batch
    assert published(mini_batch, half_after(mini_batch - 1)) == mini_batch - 1
