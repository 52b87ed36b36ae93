"""What the disk is at, as people are told."""

from __future__ import annotations

import asyncio
import threading
import time

from p2psgd.disk_work import DiskWork


def test_only_what_takes_too_long_is_told_and_the_oldest_of_it() -> None:
    async def work() -> list[str]:
        own: float | None = None
        disk, hung = DiskWork(60.0, lambda: own), threading.Event()
        now = time.monotonic()
        task = asyncio.ensure_future(disk.do("votes", hung.wait, 30))
        await asyncio.sleep(0)
        told = [disk.overdue(now + 59), disk.overdue(now + 100)]
        own = now - 100
        told.append(disk.overdue(now + 100))
        hung.set()
        assert await task
        told.append(disk.overdue(now + 100))
        own = None
        return [*told, disk.overdue(now + 1000)]

    told = asyncio.run(work())
    own_words = "the disk has been at this node's own updates for 3 min 20 s"
    assert (told[0], told[2:]) == ("", [own_words, own_words, ""])
    assert told[1].startswith("the disk has been at votes for 1 min ")
