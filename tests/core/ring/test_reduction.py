"""One bucket at one node: what may come, and what is sent of it."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.ring import reduce as module
from p2psgd.core.ring.reduce import CHECKED_NUMBERS_MIN, Piece, Reduction, Stream
from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError, RejectCode

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
        on_unsound=lambda number: pytest.fail(f"number {number} is told not to be finite"),
    )
    reduction.own = own
    return reduction


def numbers(count: int) -> memoryview:
    return np.ones(count, np.float32).data.cast("B")


def accept(check: int) -> None:
    """Whatever it is."""


def refuse(check: int) -> None:
    raise PeerError(RejectCode.CHECKSUM, f"{check}")


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
            reductions[place].take(flat.data.cast("B"), piece.contributors, accept)
    for reduction in reductions:
        assert reduction._sums.tolist() == [3 * number + 300 for number in range(K)]
        assert reduction.others == 2


@pytest.mark.parametrize("size", [1, CHECKED_NUMBERS_MIN])
def test_what_is_remembered_of_a_piece_is_no_larger_than_the_piece(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "CHECKED_NUMBERS_MIN", CHECKED_NUMBERS_MIN)
    reduction = make(nodes=2, count=4 * CHECKED_NUMBERS_MIN)
    for start in range(2 * CHECKED_NUMBERS_MIN, 4 * CHECKED_NUMBERS_MIN, size):
        reduction.check(0, start, size, 1, None)
        reduction.take(numbers(size), 1, accept)
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
    reduction.take(numbers(2), 0, accept)
    with pytest.raises(PeerError, match="numbers 10 to 12 at hop 0 cannot be sums of 1 shares"):
        reduction.check(0, 10, 2, 1, None)
    reduction.check(0, 10, 2, 0, None)


def test_all_buckets_of_a_round_are_of_as_many() -> None:
    reduction = make()
    reduction.take(numbers(4), 1, accept)
    with pytest.raises(PeerError, match="cannot be sums of 1 shares"):
        reduction.check(1, 4, 4, 1, 2)
    reduction.check(1, 4, 4, 2, 2)
    reduction.take(numbers(4), 2, accept)
    assert reduction.others == 2
    while reduction.next_piece(K) is not None:
        pass
    for wrong in (0, 2, 4):
        with pytest.raises(PeerError, match=f"cannot be sums of {wrong} shares"):
            reduction.check(2, 0, 4, wrong, 2)
    reduction.check(2, 0, 4, 3, 2)


def test_nobody_can_have_whole_sums_before_this_node_has_sent_its_part() -> None:
    reduction = make()
    reduction.take(numbers(4), 1, accept)
    reduction.take(numbers(4), 2, accept)
    assert reduction.next_piece(3) is not None
    reduction.check(2, 0, 3, 3, 2)
    with pytest.raises(PeerError, match="came whole before this node's part in them was sent"):
        reduction.check(2, 0, 4, 3, 2)


def test_a_share_that_comes_late_is_added_as_it_is_sent() -> None:
    reduction = make(own=None)
    reduction.take(numbers(4), 1, accept)
    assert reduction.next_piece(K) is None
    reduction.take(numbers(4), 2, accept)
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


@pytest.mark.parametrize("own", [True, False, None])
@pytest.mark.parametrize("nodes", [2, 3])
def test_of_numbers_that_are_not_verified_nothing_has_come(own: bool | None, nodes: int) -> None:
    reduction, other = make(own=own, nodes=nodes), make(own=own, nodes=nodes)
    right = numbers(K // nodes)
    for _ in range(2 * nodes - 2):
        hop = reduction._in.hop
        contributors = min(hop + 1, nodes - 1) if hop < nodes - 1 else nodes - 1 + bool(own)
        wrong = np.full(K // nodes, 7, np.float32).data.cast("B")
        with pytest.raises(PeerError, match=f"^{codec.crc32c(wrong)}$"):
            reduction.take(wrong, contributors, refuse)
        assert reduction._in.hop == hop
        for each in (reduction, other):
            each.take(right, contributors, accept)
            while each.next_piece(K) is not None:
                pass
    assert reduction._sums.tolist() == other._sums.tolist()
    assert (reduction.whole, reduction.heard, reduction.others) == (other.whole, other.heard, other.others)
    assert reduction._checks == other._checks


def test_what_came_before_the_share_is_caught_up_with_while_more_comes() -> None:
    reduction = make(own=None, count=12, nodes=2)
    for _ in range(4):
        reduction.take(numbers(1), 1, accept)
    assert reduction._added.passed == 0
    reduction.own = True
    reduction.take(numbers(1), 1, accept)
    assert reduction._added.passed == 2
    reduction.take(numbers(1), 1, accept)
    assert reduction._added.passed == 4
    assert reduction._sums.tolist()[6:] == [7, 8, 9, 10, 1, 1]


# Node 0 of three sends its share of numbers 0 to 4 as it is, and adds it to 8 to 12, then to 4 to 8.
@pytest.mark.parametrize("place", [1, 9, 6])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_share_that_is_not_finite_is_told_and_not_sent(place: int, late: bool, alone: bool) -> None:
    reduction, found, pieces = make(own=None if late else True), list[int](), list[Piece]()
    reduction._on_unsound = found.append
    reduction._shares[place] = np.inf
    for contributors in (0, 0) if alone else (1, 2):
        reduction.take(numbers(4), contributors, accept)
    reduction.own = True
    while (piece := reduction.next_piece(K)) is not None:
        pieces.append(piece)
    assert set(found) == {place}
    assert all(np.isfinite(piece.numbers).all() for piece in pieces)
    assert not reduction.sent


def test_sums_of_nobody_are_refused_by_a_node_without_a_share() -> None:
    reduction = make(own=False)
    reduction.take(numbers(4), 0, accept)
    with pytest.raises(PeerError, match="cannot be sums of 0 shares"):
        reduction.check(1, 4, 4, 0, None)


def test_nothing_comes_after_the_end() -> None:
    reduction = make(nodes=2)
    reduction.take(numbers(6), 1, accept)
    while reduction.next_piece(K) is not None:
        pass
    reduction.take(numbers(6), 2, accept)
    assert reduction.whole
    assert reduction.sent
    with pytest.raises(PeerError, match="came of a bucket that is whole"):
        reduction.check(1, 0, 1, 2, 1)
