"""Dialer: which hosts a node dials, how often, and for each line of the list of hosts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final

from p2psgd.base.aio import raise_failure
from p2psgd.net.address import Address, Host, UnknownNameError, hosts_of, is_numeric, is_own, look_up

# ----------------------------------------------------------------------------
# One host that is dialled until the node stops: at once, then with a jittered back-off up to the node's
# failure timeout, or twelve of them where only a hint says that a node may be there.


FIRST_DELAY_S: Final = 0.1
HINT_TIMEOUTS: Final = 12  # between two attempts to reach a node that others have told of, at most


class AddressDialer:
    """A task that dials one host, by one of its addresses after the other, while its node is not linked;
    `words` describes the result of the last attempt.

    `called` is the host's name for people. `hinted`: the node that is said to be there.
    """

    def __init__(
        self,
        called: str,
        host: Host,
        *,
        failure_timeout_s: float,
        now: Callable[[], float],
        dial: Callable[[AddressDialer, Address], Awaitable[None]],
        linked: Callable[[int], asyncio.Future[None] | None],
        hinted: int | None = None,
    ) -> None:
        self.called = called
        self.host = host
        self.hinted = hinted
        self.node = hinted  # who answers there, once known
        self.words = ""
        self.since = now()
        self.ourselves = False
        self.was_linked = False
        self._failure_timeout_s = failure_timeout_s
        self._now = now
        self._dial = dial
        self._linked = linked
        self._turn = 0  # which address is next
        self._changed = asyncio.Event()

    def move(self, host: Host) -> None:
        """Replace the host's addresses."""
        if set(host) != set(self.host):
            self.host = host
            self._changed.set()

    def met(self, node: int) -> None:
        """Record that this node has answered there, and is linked."""
        self.was_linked = True
        if self.hinted is None:
            self.node = node
        self.words = "" if node == self.node else "another node answers there"

    async def run(self) -> None:
        """Dial until cancelled, or until the host turns out to be this node itself."""
        delay_s = FIRST_DELAY_S
        longest_s = self._failure_timeout_s * (1 if self.hinted is None else HINT_TIMEOUTS)
        while not self.ourselves:
            closed = None if self.node is None else self._linked(self.node)
            if closed is not None:
                linked_at = self._now()
                await asyncio.wait([closed])
                if self._now() - linked_at > self._failure_timeout_s:  # else it may fail at once every time
                    delay_s = FIRST_DELAY_S
            elif self.host:
                await self._dial(self, self.host[self._turn % len(self.host)])
                self._turn += 1
                if self.node is not None and self._linked(self.node) is not None:
                    continue
            # jittered, so that nodes started together do not dial in step
            if await self._hears_of_change(delay_s * random.uniform(0.5, 1.0)):
                delay_s = FIRST_DELAY_S
            else:
                delay_s = min(2 * delay_s, longest_s)

    async def _hears_of_change(self, timeout_s: float) -> bool:
        """Wait for `timeout_s`, or until the host has other addresses; True if it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        changed = self._changed.is_set()
        self._changed.clear()
        return changed


def describe_failure(error: BaseException, timeout_s: float, *, before: bool) -> str:
    """Describe why a dial failed that was given `timeout_s`; `before`: a node there was linked."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:.0f} s: is a firewall in between?"
        case ConnectionRefusedError():
            return f"connection refused: no node listens there{' any more' if before else ''}"
        case socket.gaierror():
            return "the name does not resolve"
        case OSError() if error.strerror:
            return error.strerror.lower()
        case _:
            return str(error) or type(error).__name__


# ----------------------------------------------------------------------------
# One line of the list of hosts, and the dialers of the hosts that it stands for.
#
# A name is resolved anew at most once a failure timeout as long as one of its hosts is not linked, and every
# twelve failure timeouts else. Addresses that are gone are no longer dialled; while a name does not resolve,
# those it had last are.


LOOK_UP_TIMEOUT_S: Final = 10.0
RELAXED_TIMEOUTS: Final = 12


class Line:
    """A line of the list of hosts, and the dialers of the hosts that it stands for. `begin` starts dialling a
    host and `end` ends it; `words`: why the name does not resolve.
    """

    def __init__(
        self,
        address: Address,
        *,
        count: int | None,
        own: Sequence[Address],
        failure_timeout_s: float,
        now: Callable[[], float],
        begin: Callable[[str, Host], AddressDialer],
        end: Callable[[AddressDialer], None],
        linked: Callable[[int], object],
    ) -> None:
        """Take `count`, the number of hosts other than this node that the line stands for, if known; see
        `is_own` for `own`.
        """
        self.address = address
        self.called = str(address)
        self.host: Host = ()
        self.words = ""
        self.since = now()
        self.node: int | None = None
        self.hinted: int | None = None
        self.ourselves = count == 0
        self.dialers: dict[Host, AddressDialer] = {}
        self._known = count
        self._own = own
        self._failure_timeout_s = failure_timeout_s
        self._begin = begin
        self._end = end
        self._linked = linked

    @property
    def others(self) -> int:
        """Return how many hosts other than this node the line stands for: the most that were seen, because a
        node that wants to bootstrap a run with them may only have lost sight of some.
        """
        if self.ourselves:
            return 0
        ourselves = sum(dialler.ourselves for dialler in self.dialers.values())
        return max(0, (1 if self._known is None else self._known) - ourselves)

    def settle(self) -> bool:
        """Begin at once if there is nothing to resolve, and return whether that was so."""
        if is_numeric(self.address):
            self.dialers[()] = self._begin(self.called, (self.address,))
        return bool(self.dialers)

    async def run(self) -> None:
        """Resolve the name until cancelled."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                found = await look_up(self.address, timeout_s=LOOK_UP_TIMEOUT_S)
            except UnknownNameError as error:
                self.words = str(error)
            else:
                self.words = ""
                self._take(hosts_of(found))
                delay_s = self._failure_timeout_s
            if self.ourselves or (self.dialers and all(map(self._is_linked, self.dialers.values()))):
                delay_s = RELAXED_TIMEOUTS * self._failure_timeout_s
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, self._failure_timeout_s)

    def _is_linked(self, dialler: AddressDialer) -> bool:
        return dialler.ourselves or (dialler.node is not None and self._linked(dialler.node) is not None)

    def _take(self, hosts: list[Host]) -> None:
        """Dial the hosts that the name stands for now, and no others."""
        others = [host for host in hosts if not any(is_own(each, self._own) for each in host)]
        self.ourselves = not others and len(hosts) == 1
        self._known = max(self._known or 0, len(others))
        one = len(hosts) == 1  # then there is one dialler, wherever that host is
        wanted: dict[Host, Host] = {() if one else host: host for host in others}
        for key in self.dialers.keys() - wanted.keys():
            self._end(self.dialers.pop(key))
        for key, host in wanted.items():
            dialler = self.dialers.get(key)
            if dialler is None:
                called = f"{self.called} ({host[0].host})" if key else self.called
                self.dialers[key] = self._begin(called, host)
            else:
                dialler.move(host)


# ----------------------------------------------------------------------------
# The hosts that one node dials: those that its list names, and nodes whose addresses other nodes report.


HINT_DIALS_MAX: Final = 16  # at once, of nodes that only hints tell of
# After each dial its place stays taken for this long: hints may be anybody's, of anybody's addresses, and new
# ones without end, and this node must not flood these.
HINT_DIAL_S: Final = 0.1


class Dialer:
    """The dialers of one node, each with its task; `own` is where this node itself is, see `is_own`."""

    def __init__(
        self,
        *,
        failure_timeout_s: float,
        now: Callable[[], float],
        dial: Callable[[AddressDialer, Address], Awaitable[None]],
        linked: Callable[[int], asyncio.Future[None] | None],
    ) -> None:
        self.own: Sequence[Address] = ()
        self._failure_timeout_s = failure_timeout_s
        self._now = now
        self._dial = dial
        self._linked = linked
        self._lines: dict[Address, Line] = {}
        self._hinted: dict[int, AddressDialer] = {}
        self._turns = asyncio.Semaphore(HINT_DIALS_MAX)
        self._tasks: dict[AddressDialer | Line, asyncio.Task[None]] = {}

    @property
    def dialers(self) -> list[AddressDialer | Line]:
        """Return all dialers, and the lines whose names stand for nothing yet: the listed ones first, in the
        list's order.
        """
        listed = [each for line in self._lines.values() for each in line.dialers.values() or [line]]
        return [*listed, *self._hinted.values()]

    @property
    def listed(self) -> list[str]:
        """Return the IP addresses of the hosts that the list names, as far as they are known."""
        return [
            address.host
            for line in self._lines.values()
            for dialler in line.dialers.values()
            for address in dialler.host
        ]

    @property
    def others(self) -> int:
        """Return how many nodes beside this one the list names, as far as is known."""
        return sum(line.others for line in self._lines.values())

    def follow(self, lines: Sequence[Address], counts: Mapping[Address, int]) -> None:
        """Dial the hosts that these lines name, and none that only a former line named; `counts` as `Hosts`
        has them.
        """
        for address in self._lines.keys() - set(lines):
            line = self._lines.pop(address)
            self._stop(line)
            for dialler in line.dialers.values():
                self._stop(dialler)
        for address in lines:
            if address not in self._lines:
                self._lines[address] = line = self._line(address, counts.get(address))
                if not line.settle():
                    self._go(line, line.run(), f"resolve {address}")

    def follow_hints(self, wanted: Mapping[int, Host]) -> None:
        """Dial these nodes too, each where it may be, and stop dialling all others that only hints named."""
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
        """Cancel all dialling."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _line(self, address: Address, count: int | None) -> Line:
        return Line(
            address,
            count=count,
            own=self.own,
            failure_timeout_s=self._failure_timeout_s,
            now=self._now,
            begin=self._begin,
            end=self._stop,
            linked=self._linked,
        )

    def _begin(self, called: str, host: Host, hinted: int | None = None) -> AddressDialer:
        dialler = AddressDialer(
            called,
            host,
            failure_timeout_s=self._failure_timeout_s,
            now=self._now,
            dial=self._dial if hinted is None else self._dial_hinted,
            linked=self._linked,
            hinted=hinted,
        )
        self._go(dialler, dialler.run(), f"dial {called}")
        return dialler

    async def _dial_hinted(self, dialler: AddressDialer, address: Address) -> None:
        await self._turns.acquire()
        try:
            await self._dial(dialler, address)
        finally:
            asyncio.get_running_loop().call_later(HINT_DIAL_S, self._turns.release)

    def _go(self, worker: AddressDialer | Line, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(raise_failure)
        self._tasks[worker] = task

    def _stop(self, worker: AddressDialer | Line) -> None:
        """Stop a dialer or line: its connection without a greeting goes with it; its link stays."""
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()
