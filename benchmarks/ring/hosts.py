"""Where the processes of a ring run: on loopback, or on hosts of a LAN whose links carry a rate."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.lan import Lan

# A shaper that lets less than two of the kernel's largest packets pass at once cuts each into pieces of a
# frame's size, and with four hosts on one machine that is what takes the time.
BURST: Final = "256kb"


@dataclass(frozen=True, slots=True)
class Host:
    """`within` stands before the commands that run there."""

    address: str
    interface: str
    within: tuple[str, ...] = ()

    def bytes_sent(self) -> int:
        """Return the bytes that have left through this host's interface, with all headers."""
        path = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        return int(subprocess.run([*self.within, "cat", path], capture_output=True, check=True).stdout)


@contextlib.contextmanager
def loopback(count: int) -> Iterator[list[Host]]:
    yield [Host("127.0.0.1", "lo")] * count


@contextlib.contextmanager
def shaped(count: int, *, rate: str) -> Iterator[list[Host]]:
    with Lan(count, rate=rate, burst=BURST) as lan:
        yield [
            Host(address, "eth0", tuple(lan.within(number))) for number, address in enumerate(lan.addresses)
        ]


def can_shape() -> bool:
    """Network namespaces need root and iproute2."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))
