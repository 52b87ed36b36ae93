"""Whom one node dials: the hosts that its list names, and nodes of which others tell where they may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.naming import Host
from p2psgd.net.dialler import Dialler
from p2psgd.net.line import Line
from p2psgd.tasks import raise_failure

HINT_DIALS_MAX: Final = 16  # at once, of nodes that only hints tell of
# After each dial its place stays taken for so long: hints may be anybody's, of anybody's addresses, and new
# ones without end, and this node is not to be who floods these.
HINT_DIAL_S: Final = 0.1


class Dialling:
    """All diallers, each with its task; `own` is where this node itself is, see `is_own`."""

    def __init__(
        self,
        *,
        patience_s: float,
        now: Callable[[], float],
        dial: Callable[[Dialler, Address], Awaitable[None]],
        linked: Callable[[int], asyncio.Future[None] | None],
    ) -> None:
        self.own: Sequence[Address] = ()
        self._patience_s = patience_s
        self._now = now
        self._dial = dial
        self._linked = linked
        self._lines: dict[Address, Line] = {}
        self._hinted: dict[int, Dialler] = {}
        self._turns = asyncio.Semaphore(HINT_DIALS_MAX)
        self._tasks: dict[Dialler | Line, asyncio.Task[None]] = {}

    @property
    def diallers(self) -> list[Dialler | Line]:
        """All of them, and names that stand for nothing yet: the listed ones first, in the list's order."""
        listed = [each for line in self._lines.values() for each in line.diallers.values() or [line]]
        return [*listed, *self._hinted.values()]

    @property
    def listed(self) -> list[str]:
        """The IP addresses of the hosts that the list names, as far as they are known."""
        return [
            address.host
            for line in self._lines.values()
            for dialler in line.diallers.values()
            for address in dialler.host
        ]

    @property
    def others(self) -> int:
        """How many nodes beside this one the list names, as far as is known."""
        return sum(line.others for line in self._lines.values())

    def follow(self, lines: Sequence[Address], counts: Mapping[Address, int]) -> None:
        """Dial what these lines name and nothing else that a line named; `counts` as `Hosts` has them."""
        for address in self._lines.keys() - set(lines):
            line = self._lines.pop(address)
            self._stop(line)
            for dialler in line.diallers.values():
                self._stop(dialler)
        for address in lines:
            if address not in self._lines:
                self._lines[address] = line = self._line(address, counts.get(address))
                if not line.settle():
                    self._go(line, line.run(), f"resolve {address}")

    def follow_hints(self, wanted: Mapping[int, Host]) -> None:
        """Dial these nodes too, each where it may be, and no others that only hints told of."""
        for node in self._hinted.keys() - wanted.keys():
            self._stop(self._hinted.pop(node))
        for node, host in wanted.items():
            dialler = self._hinted.get(node)
            if dialler is None:
                self._hinted[node] = self._begin(str(host[0]), host, hinted=node)
            else:
                dialler.called = str(host[0])
                dialler.move(host)

    async def close(self) -> None:
        """Dial no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _line(self, address: Address, count: int | None) -> Line:
        return Line(
            address,
            count=count,
            own=self.own,
            patience_s=self._patience_s,
            now=self._now,
            begin=self._begin,
            end=self._stop,
            linked=self._linked,
        )

    def _begin(self, called: str, host: Host, hinted: int | None = None) -> Dialler:
        dialler = Dialler(
            called,
            host,
            patience_s=self._patience_s,
            now=self._now,
            dial=self._dial if hinted is None else self._dial_hinted,
            linked=self._linked,
            hinted=hinted,
        )
        self._go(dialler, dialler.run(), f"dial {called}")
        return dialler

    async def _dial_hinted(self, dialler: Dialler, address: Address) -> None:
        await self._turns.acquire()
        try:
            await self._dial(dialler, address)
        finally:
            asyncio.get_running_loop().call_later(HINT_DIAL_S, self._turns.release)

    def _go(self, worker: Dialler | Line, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(raise_failure)
        self._tasks[worker] = task

    def _stop(self, worker: Dialler | Line) -> None:
        """A connection that it has not greeted on yet goes with it; its link stays."""
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()
