"""A stranger on the local network: `python -m tests.net.announcer ADDRESS RUN` announces what is not so.

A node of another run, one of the run that is not where it says, services that are no nodes, and then many
more of those; after that it sends datagrams of random bytes. Says "done", and waits to be killed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from typing import Any

from zeroconf import IPVersion
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

SERVICE = "_p2psgd._tcp.local."
MANY = 60


def announcements(address: str, run: str) -> list[AsyncServiceInfo]:
    wrong: list[dict[str, Any]] = [
        {"id": "00000000000000aa", "run": "ab" * 32},
        {"id": "00000000000000bb", "run": run},
        {},
        {"id": "no id", "run": run},
        {"id": "00000000000000cc", "run": run[:-1]},
        {"id": "00000000000000dd", "run": b"\xff" * 200},
        *({"id": f"{n:016x}", "run": "cd" * 32} for n in range(256, 256 + MANY)),
    ]
    return [
        AsyncServiceInfo(
            SERVICE,
            f"stranger-{number}.{SERVICE}",
            port=9,
            properties=properties,
            server=f"stranger-{number}.local.",
            parsed_addresses=[address],
        )
        for number, properties in enumerate(wrong)
    ]


async def main(address: str, run: str) -> None:
    network = AsyncZeroconf(ip_version=IPVersion.V4Only)
    tasks = [
        await network.async_register_service(info, strict=False, cooperating_responders=True)
        for info in announcements(address, run)
    ]
    await asyncio.gather(*tasks)
    chance = random.Random(5)
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        for _ in range(500):
            head = bytes([0, 0, 0x84, 0, 0, 0, 0, chance.randrange(4), 0, 0, 0, 0])
            sender.sendto(head + chance.randbytes(chance.randrange(200)), ("224.0.0.251", 5353))
    sys.stdout.write("done\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, signal.pause)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
