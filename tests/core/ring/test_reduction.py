"""One bucket at one node: what may come, and what is sent of it."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.ring.reduction import CHECKED_NUMBERS_MIN, Piece, Reduction
from p2psgd.core.ring.stream import Stream
from p2psgd.errors import PeerError
from p2psgd.wire import codec

K, N = 12, 3


def make(place: int = 0, *, own: bool | None = True, nodes: int = N, count: int = K) -> Reduction:
    finals: list[tuple[int, int, int]] = []
    shares = np.arange(count, dtype=np.float32) + 100 * place
    reduction = Reduction(
        shares,
        np.full(count, np.nan, np.float32),
        nodes=nodes,
        place=place,
        half=False,
        on_final=lambda *final: finals.append(final),
    )
    reduction.own = own
    return reduction


def numbers(count: int) -> memoryview:
    return np.ones(count, np.float32).data.cast("B")


@given(st.integers(0, 50), st.integers(2, 9), st.integers(0, 8))
def test_what_goes_through_a_link_is_what_the_next_node_expects(count: int, nodes: int, place: int) -> None:
    place %= nodes
    out, into = Stream(count, nodes, place), Stream(count, nodes, (place + 1) % nodes - 1)
    seen = []
    while not out.over:
        assert (out.hop, out.rest(), out.passed) == (into.hop, into.rest(), into.passed)
        start, end = out.rest()
        assert start < end
        seen += [(out.hop, number) for number in range(start, end)]
        for stream in (out, into):
            stream.advance(end - start)
    assert into.over
    first = count * (place + 1) // nodes - count * place // nodes
    beyond = count * ((place + 2) % nodes + 1) // nodes - count * ((place + 2) % nodes) // nodes
    again = count * ((place + 1) % nodes + 1) // nodes - count * ((place + 1) % nodes) // nodes
    assert len(seen) == 2 * count - again - beyond if nodes > 2 else len(seen) == count
    assert first >= 0
    assert {number for _, number in seen} == set(range(count))


def test_a_chunk_begins_as_the_share_and_comes_back_as_the_sum() -> None:
    reductions = [make(place) for place in range(N)]
    links: list[deque[Piece]] = [deque() for _ in range(N)]
    random = Random(1)
    while not all(each.whole and each.sent for each in reductions):
        place = random.randrange(N)
        piece = reductions[place].next_piece(3)
        if piece is not None:
            links[(place + 1) % N].append(piece)
        if links[place]:
            piece = links[place].popleft()
            reductions[place].check(piece.hop, piece.offset, len(piece.numbers), piece.contributors, None)
            flat: NDArray[np.float32] = np.ascontiguousarray(piece.numbers, np.float32)
            reductions[place].take(flat.data.cast("B"), piece.contributors)
    for reduction in reductions:
        assert reduction._sums.tolist() == [3 * number + 300 for number in range(K)]
        assert reduction.others == 2


@pytest.mark.parametrize("size", [1, CHECKED_NUMBERS_MIN])
def test_what_is_remembered_of_a_piece_is_no_larger_than_the_piece(size: int) -> None:
    reduction = make(nodes=2, count=4 * CHECKED_NUMBERS_MIN)
    for start in range(2 * CHECKED_NUMBERS_MIN, 4 * CHECKED_NUMBERS_MIN, size):
        reduction.check(0, start, size, 1, None)
        reduction.take(numbers(size), 1)
    assert len(reduction._checks) == (0 if size == 1 else 2)
    first = reduction.next_piece(2 * CHECKED_NUMBERS_MIN)
    assert first is not None
    piece = reduction.next_piece(CHECKED_NUMBERS_MIN)
    assert piece is not None
    assert piece.check == (None if size == 1 else codec.crc32c(piece.numbers.data.cast("B")))


# Node 0 of three first receives chunk 2, numbers 8 to 12, at hop 0, then chunk 1, 4 to 8, at hop 1.
@pytest.mark.parametrize(
    ("hop", "offset", "count", "contributors", "words"),
    [
        (1, 8, 4, 1, "came where 8 to 12 belong at hop 0"),
        (0, 4, 4, 1, "came where 8 to 12 belong at hop 0"),
        (0, 9, 3, 1, "numbers 9 to 12 at hop 0 came where 8 to 12 belong"),
        (0, 8, 5, 1, "numbers 8 to 13 at hop 0 came where 8 to 12 belong"),
        (2**32 - 1, 8, 4, 1, "belong at hop 0"),
        (0, 8, 4, 2, "cannot be sums of 2 shares"),
        (0, 8, 4, 2**32 - 1, "cannot be sums of 4294967295 shares"),
    ],
)
def test_numbers_that_are_not_the_next_are_refused(
    hop: int, offset: int, count: int, contributors: int, words: str
) -> None:
    reduction = make()
    with pytest.raises(PeerError, match=words):
        reduction.check(hop, offset, count, contributors, None)
    assert np.isnan(reduction._sums).all()
    reduction.check(0, 8, 4, 1, None)  # these are


def test_a_chunk_cannot_change_how_many_it_is_of() -> None:
    reduction = make()
    reduction.check(0, 8, 2, 0, None)
    reduction.take(numbers(2), 0)
    with pytest.raises(PeerError, match="numbers 10 to 12 at hop 0 cannot be sums of 1 shares"):
        reduction.check(0, 10, 2, 1, None)
    reduction.check(0, 10, 2, 0, None)


def test_all_buckets_of_a_round_are_of_as_many() -> None:
    reduction = make()
    reduction.take(numbers(4), 1)
    with pytest.raises(PeerError, match="cannot be sums of 1 shares"):
        reduction.check(1, 4, 4, 1, 2)
    reduction.check(1, 4, 4, 2, 2)
    reduction.take(numbers(4), 2)
    assert reduction.others == 2
    while reduction.next_piece(K) is not None:
        pass
    for wrong in (0, 2, 4):
        with pytest.raises(PeerError, match=f"cannot be sums of {wrong} shares"):
            reduction.check(2, 0, 4, wrong, 2)
    reduction.check(2, 0, 4, 3, 2)


def test_nobody_can_have_whole_sums_before_this_node_has_sent_its_part() -> None:
    reduction = make()
    reduction.take(numbers(4), 1)
    reduction.take(numbers(4), 2)
    assert reduction.next_piece(3) is not None
    reduction.check(2, 0, 3, 3, 2)
    with pytest.raises(PeerError, match="came whole before this node's part in them was sent"):
        reduction.check(2, 0, 4, 3, 2)


def test_a_share_that_comes_late_is_added_as_it_is_sent() -> None:
    reduction = make(own=None)
    reduction.take(numbers(4), 1)
    assert reduction.next_piece(K) is None
    reduction.take(numbers(4), 2)
    assert reduction.next_piece(K) is None
    assert reduction.heard == 2
    reduction.own = True
    pieces = [reduction.next_piece(K) for _ in range(3)]
    assert [piece and (piece.hop, piece.offset, piece.contributors) for piece in pieces] == [
        (0, 0, 1),
        (1, 8, 2),
        (2, 4, 3),
    ]
    assert [piece.numbers.tolist() for piece in pieces if piece] == [
        [0, 1, 2, 3],
        [9, 10, 11, 12],
        [5, 6, 7, 8],
    ]
    assert not reduction.whole


def test_sums_of_nobody_are_refused_by_a_node_without_a_share() -> None:
    reduction = make(own=False)
    reduction.take(numbers(4), 0)
    with pytest.raises(PeerError, match="cannot be sums of 0 shares"):
        reduction.check(1, 4, 4, 0, None)


def test_nothing_comes_after_the_end() -> None:
    reduction = make(nodes=2)
    reduction.take(numbers(6), 1)
    while reduction.next_piece(K) is not None:
        pass
    reduction.take(numbers(6), 2)
    assert reduction.whole
    assert reduction.sent
    with pytest.raises(PeerError, match="came of a bucket that is whole"):
        reduction.check(1, 0, 1, 2, 1)
