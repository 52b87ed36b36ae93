"""What the disk is at, as people are told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from p2psgd.storage.files import DiskWork
from tests import DEADLINE_S


def test_what_the_disk_gives_back_is_its_callers_and_so_is_its_fault() -> None:
    async def work() -> None:
        disk = DiskWork(60.0, lambda: None)
        assert await disk.do("votes", divmod, 7, 2) == (3, 1)
        assert await disk.do("votes", sum, ()) == 0
        with pytest.raises(ZeroDivisionError):
            await disk.do("votes", divmod, 7, 0)
        assert disk.overdue(time.monotonic() + 1000) == ""

    asyncio.run(work())


def test_a_process_does_not_wait_for_a_disk_that_hangs_when_it_ends() -> None:
    code = """
import asyncio, threading
from p2psgd.storage.files import DiskWork

async def work():
    asyncio.ensure_future(DiskWork(60.0, lambda: None).do("votes", threading.Event().wait))
    await asyncio.sleep(0)

asyncio.run(work())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=DEADLINE_S).returncode == 0


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
