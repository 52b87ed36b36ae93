from __future__ import annotations

import asyncio

import pytest

from p2psgd.cli.doctor import local_checks
from p2psgd.cli.doctor.local_checks import each_host
from p2psgd.net.address import Address, Host, UnknownNameError
from p2psgd.net.hosts import Hosts


def test_a_line_that_stands_for_several_hosts_is_each_of_them_but_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, gone = Address("nodes.example", 7), Address("gone.example", 7)
    one, two, here = Address("10.0.0.1", 7), Address("10.0.0.2", 7), Address("127.0.0.1", 7)

    async def look_up(address: Address, *, timeout_s: float) -> Host:
        if address == gone:
            raise UnknownNameError
        return (two, here, one)

    monkeypatch.setattr(local_checks, "look_up", look_up)  # there is no such name to ask for here
    hosts = Hosts((one, service, gone), None, several=(service, gone))
    found = asyncio.run(each_host(hosts, Address("0.0.0.0", 7), timeout_s=1))
    assert found == (one, two, gone)
