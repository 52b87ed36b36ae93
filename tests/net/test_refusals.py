"""When refusals end a node, and when they do not."""

from __future__ import annotations

import asyncio

import pytest

from p2psgd.errors import ExitCode
from p2psgd.net.refusals import Refusals

PATIENCE_S = 0.05


class Judge:
    """Refusals of a node whose links the test decides."""

    def __init__(self) -> None:
        self.links = False
        self.failures: list[tuple[str, ExitCode]] = []
        self.refusals = Refusals(
            PATIENCE_S, linked_now=lambda: self.links, fail=lambda *words: self.failures.append(words)
        )

    async def hear(self, code: str) -> list[tuple[str, ExitCode]]:
        self.refusals.refused(code, "somewhere: no")
        await asyncio.sleep(3 * PATIENCE_S)
        return self.failures


@pytest.mark.parametrize("code", ["run", "identity", "protocol", "superseded"])
def test_a_node_that_nobody_accepts_ends(code: str) -> None:
    ((words, exit_code),) = asyncio.run(Judge().hear(code))
    assert "somewhere: no" in words
    assert exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize("code", ["run", "superseded"])
def test_a_node_that_others_accept_goes_on(code: str) -> None:
    judge = Judge()
    judge.links = True
    judge.refusals.linked()
    assert asyncio.run(judge.hear(code)) == []


def test_a_node_that_was_linked_once_does_not_end_for_another_run_elsewhere() -> None:
    judge = Judge()
    judge.refusals.linked()
    assert asyncio.run(judge.hear("run")) == []


@pytest.mark.parametrize("code", ["duplicate", "links", "anything"])
def test_what_waiting_mends_ends_nothing(code: str) -> None:
    assert asyncio.run(Judge().hear(code)) == []
