"""The walk of one update through the code: which files it passes through, and in how many Python calls.

Two nodes and their trainers run in this process; a profile hook (sys.setprofile) notes every call of a
function of the package while one update goes from `Link.send` at one node to the weights that `Link.receive`
leaves at the other. Asynchronous mode, plaintext, weights in the host's memory, uvloop as in a daemon. Of
each leg the walk with the fewest calls counts: a STATUS that comes in between belongs to no update.

`python -m benchmarks.walk` prints a table, with --list every call beneath it. No figure here is a time: a
hook makes everything several times as slow.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import numpy as np
import uvloop

import p2psgd
from p2psgd.base.errors import ExitCode
from p2psgd.client.link import Link
from p2psgd.ipc.ring_buffer import Wakeup
from p2psgd.ipc.trainer_session import TrainerSession
from p2psgd.net.address import Address
from p2psgd.net.connection import Connection
from p2psgd.net.peer_sources.hosts_file import from_file
from p2psgd.node.daemon import Node
from p2psgd.node.options import NodeOptions
from tests.ports import free_ports

PRODUCT: Final = str(Path(p2psgd.__file__).parent) + "/"
WALKS: Final = 5
INDICES: Final = 20
FAILURE_TIMEOUT_S: Final = 10.0
WAIT_S: Final = 60.0


@dataclass(frozen=True)
class LegSpec:
    """A leg begins with the call of one function and ends with the return of another, or with its own."""

    name: str
    begin: CodeType
    end: CodeType


def _leg(name: str, begin: Callable[..., object], end: Callable[..., object]) -> LegSpec:
    assert isinstance(begin, FunctionType), begin
    assert isinstance(end, FunctionType), end
    return LegSpec(name, begin.__code__, end.__code__)


LEGS: Final = (
    _leg("trainer A: Link.send", Link.send, Link.send),
    _leg("daemon A: from its wake-up to the socket", TrainerSession._on_wake, Connection.send),
    _leg("daemon B: from the socket to the inbox", Connection.buffer_updated, Wakeup.signal),
    _leg("trainer B: Link.receive", Link.receive, Link.receive),
)


@dataclass
class Leg:
    """The calls of one leg as (file, function), in their order.

    `after` counts the calls that follow its end in the same turn of the loop.
    """

    name: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    after: int = 0

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def changes(self) -> int:
        """Count the changes of file: how often the next call is in another file than the one before."""
        return sum(a != b for (a, _), (b, _) in itertools.pairwise(self.calls))


class Hook:
    """Notes the legs that one thread goes through while it is set there."""

    def __init__(self) -> None:
        self.legs: list[Leg] = []
        self._depth = 0  # in frames of the package
        self._spec: LegSpec | None = None
        self._calls: list[tuple[str, str]] = []
        self._ended_at = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PRODUCT):
            return
        if event == "call":
            self._enter(code)
        elif event == "return" and self._depth:  # a frame that was there before the hook counts nothing
            self._leave(code)

    def _enter(self, code: CodeType) -> None:
        if self._depth == 0:
            self._spec = next((spec for spec in LEGS if spec.begin is code), None)
            self._calls, self._ended_at = [], 0
        self._depth += 1
        if self._spec is not None:
            self._calls.append((code.co_filename.removeprefix(PRODUCT), code.co_qualname))

    def _leave(self, code: CodeType) -> None:
        self._depth -= 1
        if self._spec is None:
            return
        if code is self._spec.end and not self._ended_at:
            self._ended_at = len(self._calls)
        if self._depth == 0 and self._ended_at:
            end = self._ended_at
            self.legs.append(Leg(self._spec.name, self._calls[:end], len(self._calls) - end))


def profiled(hook: Hook, work: Callable[[], object]) -> None:
    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(None)


class Walks:
    """Two linked nodes, and the thread of each one's trainer."""

    def __init__(self, folder: Path, weights: int) -> None:
        self.weights = weights
        ports = free_ports(2)
        hosts = folder / "hosts.txt"
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
        self.nodes = [
            Node(
                NodeOptions(
                    peers=from_file(hosts),
                    listen=Address("127.0.0.1", port),
                    state=folder / f"node-{number}",
                    name=f"node-{number}",
                    failure_timeout_s=FAILURE_TIMEOUT_S,
                )
            )
            for number, port in enumerate(ports)
        ]
        self.threads = [ThreadPoolExecutor(1, f"trainer-{number}") for number in range(2)]
        self.legs: list[Leg] = []

    async def run(self, walks: int) -> None:
        """Start the nodes, walk so often, and stop them."""
        serving = [asyncio.create_task(node.serve()) for node in self.nodes]
        try:
            sender, receiver = await asyncio.gather(
                *(self._in_trainer(number, self._attach, number) for number in range(2))
            )
            for number in range(walks):
                await self._walk(sender, receiver, number)
            await asyncio.gather(
                *(self._in_trainer(number, link.close) for number, link in enumerate((sender, receiver)))
            )
        finally:
            for node in self.nodes:
                node.fail("the walk is done", ExitCode.OK)
            await asyncio.gather(*serving)
            for thread in self.threads:
                thread.shutdown()

    async def _walk(self, sender: Link, receiver: Link, number: int) -> None:
        delta = np.zeros(self.weights, np.float32)
        delta[number :: self.weights // INDICES] = 1.5 * sender.quantum
        hooks = [Hook(), Hook(), Hook()]
        sys.setprofile(hooks[1])
        try:
            await self._in_trainer(0, profiled, hooks[0], partial(sender.send, delta, threshold=1))
            assert await self._in_trainer(1, receiver.wait, WAIT_S), "the update has not come"
        finally:
            sys.setprofile(None)
        await self._in_trainer(1, profiled, hooks[2], receiver.receive)
        assert np.array_equal(receiver.weights, sender.weights)
        self.legs += itertools.chain.from_iterable(hook.legs for hook in hooks)

    def _attach(self, number: int) -> Link:
        return p2psgd.attach(np.zeros(self.weights, np.float32), control=self.nodes[number].options.state)

    def _in_trainer(self, number: int, work: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self.threads[number], work, *arguments)


def measure(*, weights: int, walks: int) -> list[Leg]:
    """The four legs, each as its shortest walk of so many."""
    assert threading.current_thread() is threading.main_thread(), "a node sets signal handlers"
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        taken = Walks(Path(folder), weights)
        runner.run(taken.run(walks))
    return [
        min((leg for leg in taken.legs if leg.name == spec.name), key=lambda leg: len(leg.calls))
        for spec in LEGS
    ]


def table(legs: Sequence[Leg]) -> str:
    """Return one line for each leg, and one for all of them."""
    lines = [f"{'leg':<42}{'calls':>7}{'files':>7}{'changes of file':>17}{'after it':>10}"]
    lines += [
        f"{leg.name:<42}{len(leg.calls):>7}{len(leg.files):>7}{leg.changes:>17}{leg.after:>10}"
        for leg in legs
    ]
    calls, changes = sum(len(leg.calls) for leg in legs), sum(leg.changes for leg in legs)
    files = set().union(*(leg.files for leg in legs))
    return "\n".join([*lines, f"{'all':<42}{calls:>7}{len(files):>7}{changes:>17}"])


def chain(leg: Leg) -> str:
    """The calls of a leg, those that follow each other in one file on one line."""
    lines = [leg.name]
    for file, calls in itertools.groupby(leg.calls, key=lambda call: call[0]):
        lines.append(f"  {file:<28} {', '.join(name for _, name in calls)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every call too, file by file")
    parser.add_argument("--small", action="store_true", help="fewer weights and walks")
    arguments = parser.parse_args()
    legs = measure(weights=2000, walks=2) if arguments.small else measure(weights=20_000, walks=WALKS)
    print(table(legs))
    if arguments.list:
        print("", "\n\n".join(map(chain, legs)), sep="\n")


if __name__ == "__main__":
    main()
