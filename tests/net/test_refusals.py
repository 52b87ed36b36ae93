"""When refusals end a node, when it begins another life, and when they do neither."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.core.frontier import TOLD_MAX
from p2psgd.net.rejections import DEAD_TIMEOUTS, RESTARTS_MAX, Rejections
from p2psgd.wire.reject import RejectCode

FAILURE_TIMEOUT_S = 0.05
ME = 1000
LATER = 2000


class Judge:
    """Rejections of a node whose links the test decides."""

    def __init__(self, incarnations_left: int = RESTARTS_MAX - 1) -> None:
        self.links = False
        self.failures: list[tuple[str, ExitCode]] = []
        self.incarnations: list[int] = []
        self.rejections = Rejections(
            FAILURE_TIMEOUT_S,
            incarnation=ME,
            incarnations_left=incarnations_left,
            linked_now=lambda: self.links,
            fail=lambda *words: self.failures.append(words),
            begin_again=lambda above, _: self.incarnations.append(above),
        )

    @property
    def is_silent(self) -> bool:
        return not self.failures and not self.incarnations

    async def hear(
        self, code: RejectCode, newest: int = 0, *, listed: bool = True
    ) -> list[tuple[str, ExitCode]]:
        self.rejections.refused(code, "somewhere: no", newest, listed=listed)
        await asyncio.sleep(3 * FAILURE_TIMEOUT_S)
        return self.failures

    async def hear_until_judged(self, *told: tuple[RejectCode, int]) -> float:
        """The same refusals again and again, as dialers bring them; returns how long it took."""
        began = time.monotonic()
        while self.is_silent:
            assert time.monotonic() - began < 20, "nothing was judged"
            for code, newest in told:
                self.rejections.refused(code, "somewhere: no", newest)
            await asyncio.sleep(FAILURE_TIMEOUT_S / 5)
        return time.monotonic() - began


@pytest.mark.parametrize("code", [RejectCode.RUN, RejectCode.IDENTITY, RejectCode.PROTOCOL])
def test_a_node_that_nobody_accepts_ends(code: RejectCode) -> None:
    ((words, exit_code),) = asyncio.run(Judge().hear(code))
    assert "somewhere: no" in words
    assert exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("code", "newest"),
    [(RejectCode.SUPERSEDED, 0), (RejectCode.BEHIND, LATER), (RejectCode.BEHIND, 2**64 - 1)],
)
def test_an_old_life_ends_and_begins_no_other_however_high_the_new_one_is(
    code: RejectCode, newest: int
) -> None:
    judge = Judge()
    judge.rejections.admitted()
    ((words, exit_code),) = asyncio.run(judge.hear(code, newest))
    assert "this node has been started again elsewhere, so this life of it ends (somewhere: no)" in words
    assert exit_code is ExitCode.CONFIGURATION
    assert judge.incarnations == []


@pytest.mark.parametrize("code", [RejectCode.RUN, RejectCode.SUPERSEDED, RejectCode.BEHIND])
def test_a_node_that_others_accept_goes_on(code: RejectCode) -> None:
    judge = Judge()
    judge.links = True
    judge.rejections.linked()
    assert asyncio.run(judge.hear(code, LATER)) == []
    assert judge.incarnations == []


def test_a_node_that_was_linked_once_does_not_end_for_another_run_elsewhere() -> None:
    judge = Judge()
    judge.rejections.linked()
    assert asyncio.run(judge.hear(RejectCode.RUN)) == []


@pytest.mark.parametrize("code", [RejectCode.DUPLICATE, RejectCode.LINKS, "anything"])
def test_what_waiting_mends_ends_nothing(code: RejectCode) -> None:
    assert asyncio.run(Judge().hear(code)) == []


@pytest.mark.parametrize("listed", [True, False], ids=["dialled", "dials"])
def test_a_life_behind_one_that_is_nowhere_linked_goes_on_above_it(listed: bool) -> None:
    judge = Judge()
    judge.rejections.linked()  # for an instant, before the peer read its WELCOME
    assert asyncio.run(judge.hear(RejectCode.BEHIND, LATER, listed=listed)) == []
    assert judge.incarnations == [LATER]


def test_it_goes_on_above_the_highest_that_can_be_believed() -> None:
    judge = Judge()
    asyncio.run(
        judge.hear_until_judged(
            (RejectCode.BEHIND, LATER), (RejectCode.BEHIND, LATER + 5), (RejectCode.BEHIND, 2**64 - 1)
        )
    )
    assert (judge.incarnations, judge.failures) == ([LATER + 5], [])


def test_what_no_clock_explains_is_not_believed_and_a_person_is_told_what_to_do() -> None:
    judge = Judge()
    ((words, exit_code),) = asyncio.run(judge.hear(RejectCode.BEHIND, TOLD_MAX + 1))
    assert re.search(r"no clock explains: .*another --state", words)
    assert exit_code is ExitCode.CONFIGURATION
    assert judge.incarnations == []


def test_a_peer_that_tells_of_no_later_life_is_not_believed() -> None:
    judge = Judge()
    asyncio.run(judge.hear(RejectCode.BEHIND, ME))
    assert judge.is_silent


def test_after_so_many_lives_it_ends() -> None:
    judge = Judge(incarnations_left=0)
    ((words, exit_code),) = asyncio.run(judge.hear(RejectCode.BEHIND, LATER))
    assert f"begun {RESTARTS_MAX} incarnations in a row" in words
    assert exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("code", "newest", "incarnations_left"),
    [
        (RejectCode.SUPERSEDED, 0, 1),
        (RejectCode.BEHIND, TOLD_MAX + 1, 1),
        (RejectCode.BEHIND, LATER, 0),
        (RejectCode.RUN, 0, 1),
    ],
)
def test_whom_the_list_does_not_name_cannot_end_a_node(
    code: RejectCode, newest: int, incarnations_left: int
) -> None:
    judge = Judge(incarnations_left)
    asyncio.run(judge.hear(code, newest, listed=False))
    assert judge.is_silent


def test_a_member_is_not_ended_by_whom_its_list_does_not_name() -> None:
    judge = Judge()
    judge.rejections.admitted()
    asyncio.run(judge.hear(RejectCode.BEHIND, LATER, listed=False))
    assert judge.is_silent


def test_a_life_that_was_no_member_waits_until_a_dead_link_would_have_been_closed() -> None:
    """The peer may still hold the link of the life before, which has lost its disk."""
    judge = Judge()
    waited_s = asyncio.run(judge.hear_until_judged((RejectCode.SUPERSEDED, 0)))
    assert waited_s >= DEAD_TIMEOUTS * FAILURE_TIMEOUT_S
    ((words, exit_code),) = judge.failures
    assert "started again elsewhere" in words
    assert exit_code is ExitCode.CONFIGURATION


def test_when_that_link_is_closed_it_goes_on_above() -> None:
    async def scenario(judge: Judge) -> None:
        await judge.hear(RejectCode.SUPERSEDED)
        await judge.hear_until_judged((RejectCode.BEHIND, LATER))

    judge = Judge()
    asyncio.run(scenario(judge))
    assert (judge.incarnations, judge.failures) == ([LATER], [])


def test_it_does_not_go_above_a_life_that_is_linked_elsewhere() -> None:
    judge = Judge()
    asyncio.run(judge.hear_until_judged((RejectCode.SUPERSEDED, 0), (RejectCode.BEHIND, LATER)))
    assert judge.incarnations == []
    assert "started again elsewhere" in judge.failures[0][0]


def test_it_does_not_go_above_a_life_that_answers_a_dial() -> None:
    judge = Judge()
    asyncio.run(judge.hear_until_judged((RejectCode.IDENTITY, 0), (RejectCode.BEHIND, LATER)))
    assert judge.incarnations == []
    assert "no peer accepts this node" in judge.failures[0][0]


def test_nor_if_only_whom_the_list_does_not_name_has_it_linked() -> None:
    async def scenario(judge: Judge) -> None:
        judge.rejections.refused(RejectCode.BEHIND, "one", LATER)
        await judge.hear(RejectCode.SUPERSEDED, listed=False)

    judge = Judge()
    asyncio.run(scenario(judge))
    assert judge.is_silent
