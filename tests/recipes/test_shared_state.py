"""A state of L-BFGS that travels through evaluations, bit for bit."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import p2psgd
from p2psgd.client.link import Link
from p2psgd.recipes import shared_state
from p2psgd.recipes.lbfgs import Lbfgs, Vector
from p2psgd.recipes.shared_state import SharedState, halves, join_halves, pack_rows, unpack_rows


def bowl(x: Vector) -> tuple[float, Vector]:
    scale = 3.0 ** np.arange(x.size)
    return float(np.sum(scale * (x - 1 / 3) ** 2)), 2 * scale * (x - 1 / 3)


def state_after(iterations: int, size: int) -> dict[str, Any]:
    method = Lbfgs(bowl, np.zeros(size))
    for _ in range(iterations):
        method.iterate()
    return method.state


def is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one
    )


def test_halves_keep_all_bits() -> None:
    numbers = np.array([0.0, -0.0, 1 / 3, -1e300, 5e-324, np.inf, np.nan])
    assert join_halves(*halves(numbers)).tobytes() == numbers.tobytes()


@pytest.mark.parametrize("size", [3, 5, 8])
@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_rows_are_what_the_state_was(size: int, iterations: int) -> None:
    state = state_after(iterations, size)
    rows = pack_rows(state, size)
    assert rows.shape[1] == size
    assert is_same(unpack_rows(rows), state)


def test_evaluations_hand_a_state_out_and_report_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after(4, 7)
    reported: list[Any] = []
    with p2psgd.attach(np.zeros(7, np.float32), mode="closure", alone=True) as link:
        monkeypatch.setattr(link._client, "tell", reported.append)
        found = SharedState(link, state, np.zeros(7)).fetch()
        assert not reported
        link.evaluate(lambda x, part: (1.0, x), np.zeros(7), 3)
        assert [report.loss for report in reported] == [3.0]
    assert found is not None
    assert is_same(found, state)


def test_without_a_state_they_hand_none_out() -> None:
    with p2psgd.attach(np.zeros(7, np.float32), mode="closure", alone=True) as link:
        assert SharedState(link, None, np.zeros(7)).fetch() is None


# ----------------------------------------------------------------------------
# Several nodes whose evaluations take a moment: the first answer counts for all.

SIZE = 7
COMPLETE_S = 0.02  # that an answer takes


class Room:
    """What evaluations have given: the first answer of each."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self._lock = threading.Lock()

    def answer(self, number: int, numbers: Any) -> None:
        with self._lock:
            if len(self.results) == number:
                self.results.append(numbers)


class Dead(Exception):
    """The node is no more."""


class Member(Link):
    """The link of one node of a room, which comes `late_s` late and dies before its evaluation `dies_at`."""

    stopping = False

    def __init__(self, room: Room, place: int, *, late_s: float = 0.0, dies_at: int = 10**6) -> None:
        self._room, self._place, self._late_s, self._dies_at = room, place, late_s, dies_at
        self.evaluations = 0

    def view_rank(self) -> tuple[int, int]:
        return self._place, 4

    def _evaluate(self, function: Any, point: Any, data: Any, *, portions: int | None = None) -> Any:
        if self.evaluations == 0:
            time.sleep(self._late_s)
        if self.evaluations == self._dies_at:
            raise Dead
        if len(self._room.results) == self.evaluations:
            answer = function(point, range(1))
            time.sleep(COMPLETE_S)
            self._room.answer(self.evaluations, answer)
        self.evaluations += 1
        return self._room.results[self.evaluations - 1]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "PATIENCE_S", 2.5)  # a busy machine delays a thread
    monkeypatch.setattr(shared_state, "POLL_S", 0.01)


def fetched(room: Room, kept: list[dict[str, Any] | None], **members: Any) -> list[Any]:
    """What nodes with these states go on from; one that dies, its end."""

    def fetch(place: int) -> Any:
        options = {name: of[place] for name, of in members.items() if place in of}
        try:
            return SharedState(Member(room, place, **options), kept[place], np.zeros(SIZE)).fetch()
        except Dead as error:
            return error

    with ThreadPoolExecutor(len(kept)) as pool:
        return list(pool.map(fetch, range(len(kept))))


STATES = [state_after(iterations, SIZE) for iterations in range(8)]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("iterations", [[1, 4, 6, 2], [0, 0, 3, 6], [6, 6, 6, 6], [1, 2, 4, 6]])
def test_the_newest_state_is_what_all_go_on_from(iterations: list[int]) -> None:
    room = Room()
    found = fetched(room, [STATES[each] if each else None for each in iterations])
    assert all(is_same(each, STATES[6]) for each in found)


def test_nodes_whose_answers_differ_take_turns_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once would look as if the function were not deterministic."""
    for now in (1e9, 1e9 + 0.06, 1e9 + 0.19):
        monkeypatch.setattr("time.time", lambda now=now: now)
        members = [SharedState(Member(Room(), place), STATES[6], np.zeros(SIZE)) for place in range(4)]
        waits = sorted(member._turn_s() for member in members)
        assert 0 <= waits[0] < 4 * shared_state.TURN_S
        np.testing.assert_allclose(np.diff(waits), shared_state.TURN_S, atol=1e-6)


@pytest.mark.usefixtures("quickly")
def test_a_node_that_comes_a_little_later_is_waited_for() -> None:
    found = fetched(Room(), [STATES[4], None, STATES[6]], late_s={2: 1.0})
    assert all(is_same(each, STATES[6]) for each in found)


@pytest.mark.usefixtures("quickly")
def test_a_node_that_comes_too_late_takes_what_the_others_have() -> None:
    room = Room()
    before = fetched(room, [STATES[4], STATES[2]])
    after = fetched(room, [STATES[6]])
    assert all(is_same(each, STATES[4]) for each in (*before, *after))


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("dies_at", [2, 5])
def test_the_death_of_the_only_holder_sends_the_others_back_to_their_offers(dies_at: int) -> None:
    room = Room()
    found = fetched(room, [STATES[1], STATES[4], STATES[6]], dies_at={2: dies_at})
    assert isinstance(found[2], Dead)
    assert all(is_same(each, STATES[4]) for each in found[:2])
    late = fetched(room, [STATES[6], None])
    assert all(is_same(each, STATES[4]) for each in late)


@pytest.mark.usefixtures("quickly")
def test_a_node_that_is_to_end_gives_no_answer() -> None:
    room = Room()
    member = Member(room, 0)
    member.stopping = True
    with pytest.raises(SystemExit):
        SharedState(member, None, np.zeros(SIZE)).fetch()
    assert not room.results
