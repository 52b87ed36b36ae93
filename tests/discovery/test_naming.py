"""What a line of a list stands for."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from p2psgd.discovery import naming
from p2psgd.discovery.address import Address
from p2psgd.discovery.naming import ADDRESSES_MAX, UnknownNameError, hosts_of, is_numeric, is_own, look_up
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
        return runner.run(look_up(address, timeout_s=20))


def test_a_name_is_looked_up(loop_factory: LoopFactory) -> None:
    found = resolve(loop_factory, Address("localhost", 7))
    assert set(found) <= {Address("127.0.0.1", 7), Address("::1", 7)}
    assert found
    assert resolve(loop_factory, Address("::ffff:10.0.0.1", 7)) == (Address("10.0.0.1", 7),)


def test_a_name_that_does_not_resolve_is_said_to(loop_factory: LoopFactory) -> None:
    with pytest.raises(UnknownNameError, match="does not resolve"):
        resolve(loop_factory, Address("no-such-host.invalid", 7))


def test_of_a_name_with_very_many_addresses_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(*_: object, **__: object) -> list[object]:
        hosts = [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(5000)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 7)) for host in hosts]

    async def scenario() -> tuple[Address, ...]:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", many)
        return await look_up(Address("many.example", 7), timeout_s=5)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert len(runner.run(scenario())) == ADDRESSES_MAX


def test_a_resolver_that_does_not_answer_is_asked_once_and_its_late_answer_is_heard(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        answer, asked = loop.create_future(), []

        async def getaddrinfo(host: str, port: int, **_: object) -> object:
            asked.append(host)
            return await answer

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        for _ in range(3):
            with pytest.raises(UnknownNameError, match="was not resolved within 0 s"):
                await look_up(Address("slow.example", 7), timeout_s=0.01)
        assert asked == ["slow.example"]
        answer.set_result([(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 7315))])
        assert await look_up(Address("slow.example", 7), timeout_s=20) == (Address("10.0.0.1", 7),)
        assert await look_up(Address("slow.example", 7), timeout_s=20) == (Address("10.0.0.1", 7),)
        assert asked == ["slow.example"] * 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_a_late_refusal_that_nobody_waits_for_is_no_bug(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        answer, bugs = loop.create_future(), []
        loop.set_exception_handler(lambda _, context: bugs.append(context))

        async def getaddrinfo(*_: object, **__: object) -> object:
            return await answer

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        with pytest.raises(UnknownNameError):
            await look_up(Address("slow.example", 7), timeout_s=0.01)
        answer.set_exception(socket.gaierror(socket.EAI_AGAIN, "later"))
        while naming._asked:
            await asyncio.sleep(0)
        gc.collect()
        assert not bugs

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
