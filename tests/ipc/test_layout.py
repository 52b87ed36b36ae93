from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import TrainerError
from p2psgd.client.compute import ResidualPass
from p2psgd.ipc import layout
from p2psgd.ipc.ring_buffer import entry_bytes
from p2psgd.wire import codec
from p2psgd.wire.mode import ASYNC, Mode
from p2psgd.wire.ring_messages import BUCKETS_MAX, PARTS_MAX
from tests.ipc.daemons import PATIENT

SPARSE = Mode("sparse")


def test_the_layout_has_room_for_several_of_the_largest_updates() -> None:
    for weights in (1, 1000, 14_600_000, 2**31):
        longest = layout.outbox_entry_bytes(weights, ASYNC)[1]
        assert layout.outbox_bytes(weights, ASYNC) >= 4 * longest
        assert (
            layout.outbox_bytes(weights, ASYNC).bit_count()
            == layout.inbox_bytes(weights, ASYNC).bit_count()
            == 1
        )
    assert layout.inbox_bytes(14_600_000, ASYNC) <= 32 * 2**20
    assert max(layout.outbox_bytes(weights, ASYNC) for weights in range(1, 20_000)) == 512 * 1024


@pytest.mark.parametrize("weights", [1, 14_600_000, 2**31])
def test_the_outbox_of_a_dense_ring_holds_a_round_of_the_most_buckets(weights: int) -> None:
    _, longest = layout.outbox_entry_bytes(weights, Mode("dense"))
    assert layout.outbox_bytes(weights, Mode("dense")) >= BUCKETS_MAX * entry_bytes(longest)


@pytest.mark.parametrize(
    ("weights", "indices"),
    [
        (1, 1),
        (2**18, 2**18),
        (2**22, 2**18),
        (2**22 + 16, 2**18 + 1),
        (124_000_000, 7_750_000),
        (2**31, 2**27),
    ],
)
def test_a_send_has_all_weights_or_what_an_update_holds_or_a_sixteenth(weights: int, indices: int) -> None:
    assert layout.send_indices_max(weights) == indices


@pytest.mark.parametrize("weights", [2**22, 124_000_000, 2**31])
def test_the_rings_of_a_large_run_take_less_than_a_byte_for_each_weight(weights: int) -> None:
    assert layout.outbox_bytes(weights, ASYNC) + layout.inbox_bytes(weights, ASYNC) <= max(
        weights, 12 * 2**20
    )


def send_bytes_max(sizes: list[int]) -> int:
    """What a share of tensors of these sizes, each with a step of its own, takes at most."""
    weights = sum(sizes)
    tensors = tuple((str(number), (size,)) for number, size in enumerate(sizes))
    sweep = ResidualPass(tensors, indices_max=layout.send_indices_max(weights), quantum=1.0)
    groups = sweep.groups({name: 1 + number for number, (name, _) in enumerate(tensors)})
    most = codec.indices_max(weights)
    counts = [min(most, group.room - begin) for group in groups for begin in range(0, group.room, most)]
    updates = (layout.OUTBOX_ENTRY.size + codec.payload_bytes_max(count) for count in counts)
    return sum(map(entry_bytes, updates)) + entry_bytes(layout.OUTBOX_ENTRY.size)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 8_000, 30_000_000])
@pytest.mark.parametrize("count", [1, 7, 34, 71, 1000, PARTS_MAX])
def test_an_empty_outbox_holds_a_send_of_equal_tensors_with_steps_of_their_own(count: int, size: int) -> None:
    if count * size <= codec.WEIGHTS_MAX:
        assert send_bytes_max([size] * count) <= layout.outbox_bytes(count * size, SPARSE)


@PATIENT
@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=300),
    st.integers(0, 3800),
    st.integers(1, 200_000_000),
)
def test_an_empty_outbox_holds_a_send_of_any_tensors_with_steps_of_their_own(
    some: list[int], ones: int, large: int
) -> None:
    sizes = [*some, *[1] * min(ones, PARTS_MAX - 60 - len(some)), large]
    assert send_bytes_max(sizes) <= layout.outbox_bytes(sum(sizes), SPARSE)
    assert send_bytes_max(sizes[:-1]) <= layout.outbox_bytes(sum(sizes[:-1]), SPARSE)


def test_steps_that_would_make_too_many_updates_are_refused() -> None:
    sizes = [2**20] * 3 + [1] * (PARTS_MAX - 2)
    with pytest.raises(
        TrainerError, match=r"the 4097 distinct thresholds .* 4097 updates; .* at most 4096: give"
    ):
        send_bytes_max(sizes)
    sizes = [2**23] * 2 + [1] * (PARTS_MAX - 2)
    with pytest.raises(
        TrainerError, match=r"the 4096 distinct thresholds .* 4098 updates; .* at most 4096: give"
    ):
        send_bytes_max(sizes)
