"""What a line of a list stands for."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from p2psgd.net import address as resolver
from p2psgd.net.address import (
    ADDRESSES_MAX,
    THREADS_MAX,
    Address,
    UnknownNameError,
    hosts_of,
    is_numeric,
    is_own,
    look_up,
)
from tests import DEADLINE_S
from tests.conftest import LoopFactory

FOUR = [Address(f"10.0.0.{n}", 7315) for n in range(1, 4)]
SIX = [Address(f"2001:db8::{n}", 7315) for n in range(1, 4)]


def test_a_name_with_an_address_of_each_kind_is_one_host_by_either() -> None:
    assert hosts_of((SIX[0], FOUR[0])) == [(SIX[0], FOUR[0])]
    assert hosts_of((FOUR[0],)) == [(FOUR[0],)]


def test_a_name_with_several_of_a_kind_is_as_many_hosts() -> None:
    assert hosts_of((FOUR[2], FOUR[0])) == [(FOUR[0],), (FOUR[2],)]
    assert hosts_of((SIX[0], *FOUR)) == [(each,) for each in FOUR]
    assert hosts_of((*SIX, *FOUR)) == [(each,) for each in SIX]
    assert hosts_of((*FOUR, *SIX)) == [(each,) for each in FOUR]


def test_ip_addresses_need_no_look_up() -> None:
    assert is_numeric(FOUR[0])
    assert is_numeric(Address("fe80::1%eth0", 1))
    assert not is_numeric(Address("10.example", 1))


def test_this_nodes_own_addresses_are_those_that_lead_to_where_it_listens() -> None:
    assert is_own(Address("127.0.0.1", 7), [Address("0.0.0.0", 7)])
    assert is_own(Address("127.0.0.1", 7), [Address("::", 7)])
    assert is_own(Address("::1", 7), [Address("::", 7)])
    assert not is_own(Address("127.0.0.1", 8), [Address("0.0.0.0", 7)])
    assert not is_own(Address("127.0.0.2", 7), [Address("127.0.0.1", 7)])
    assert not is_own(Address("192.0.2.1", 7), [Address("0.0.0.0", 7)])
    assert is_own(Address("192.0.2.1", 9), [Address("0.0.0.0", 7), Address("192.0.2.1", 9)])


def resolve(loop_factory: LoopFactory, address: Address) -> tuple[Address, ...]:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(look_up(address, timeout_s=DEADLINE_S))


def test_a_name_is_looked_up(loop_factory: LoopFactory) -> None:
    found = resolve(loop_factory, Address("localhost", 7))
    assert set(found) <= {Address("127.0.0.1", 7), Address("::1", 7)}
    assert found
    assert resolve(loop_factory, Address("::ffff:10.0.0.1", 7)) == (Address("10.0.0.1", 7),)


def test_a_name_that_does_not_resolve_is_said_to(loop_factory: LoopFactory) -> None:
    with pytest.raises(UnknownNameError, match="does not resolve"):
        resolve(loop_factory, Address("no-such-host.invalid", 7))


def test_of_a_name_with_very_many_addresses_some_are_taken(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(5000)]
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    assert len(resolve(loop_factory, Address("many.example", 7))) == ADDRESSES_MAX


class SlowResolver:
    """In the system's place: it lets everybody wait until it is `awake`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.awake = threading.Event()
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.failure: OSError | None = None
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)

    def getaddrinfo(self, host: str, *_: object, **__: object) -> list[object]:
        self.asked.append(host)
        self.awake.wait(DEADLINE_S)
        self.answered.append(host)
        if self.failure is not None:
            raise self.failure
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowResolver]:
    resolver = SlowResolver(monkeypatch)
    yield resolver
    resolver.awake.set()
    for thread in threading.enumerate():
        if thread.name == "resolver":
            thread.join(DEADLINE_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def ask_in_vain(name: str, port: int = 7) -> None:
    with pytest.raises(UnknownNameError, match="was not resolved within 0 s"):
        await look_up(Address(name, port), timeout_s=0.01)


def test_a_resolver_that_does_not_answer_is_asked_once_and_its_late_answer_is_heard(
    loop_factory: LoopFactory, slow: SlowResolver
) -> None:
    async def scenario() -> None:
        for port in (7, 7, 8):
            await ask_in_vain("slow.example", port)
        await until(lambda: slow.asked == ["slow.example"])
        slow.awake.set()
        assert await look_up(Address("slow.example", 7), timeout_s=DEADLINE_S) == (Address("10.0.0.1", 7),)
        assert slow.asked == ["slow.example"]
        assert await look_up(Address("slow.example", 8), timeout_s=DEADLINE_S) == (Address("10.0.0.1", 8),)
        assert slow.asked == ["slow.example"] * 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_a_loop_ends_without_the_answers_of_a_dead_resolver(
    loop_factory: LoopFactory, slow: SlowResolver
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(ask_in_vain("slow.example"))
    assert not slow.answered


def test_a_dead_resolver_holds_some_threads_and_other_names_wait_for_their_turn(
    loop_factory: LoopFactory, slow: SlowResolver
) -> None:
    async def scenario() -> None:
        names = [f"slow-{number}.example" for number in range(3 * THREADS_MAX)]
        await asyncio.gather(*map(ask_in_vain, names))
        await until(lambda: len(slow.asked) == THREADS_MAX)
        assert sum(thread.name == "resolver" for thread in threading.enumerate()) == THREADS_MAX
        slow.awake.set()
        await asyncio.gather(*(look_up(Address(name, 7), timeout_s=DEADLINE_S) for name in names))
        assert sorted(slow.answered) == sorted(names)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_a_late_refusal_that_nobody_waits_for_is_no_bug(
    loop_factory: LoopFactory, slow: SlowResolver
) -> None:
    async def scenario() -> None:
        bugs: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
        slow.failure = socket.gaierror(socket.EAI_AGAIN, "later")
        await ask_in_vain("slow.example")
        slow.awake.set()
        await until(lambda: not resolver.questions().open)
        gc.collect()
        assert not bugs

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
