"""A disk of its own for each node: a small tmpfs, so that "disk full" is a file that fills it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.lan import command

SIZE_MIB: Final = 64
FILLER: Final = "somebody-elses-file"


class Disk:
    """A tmpfs at `path`, mounted while the context lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        command("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "p2psgd-chaos", str(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lazily: a process that is only just dying may still have a file open.
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)

    def fill(self) -> None:
        """Leave no byte free."""
        filler = os.open(self.path / FILLER, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            room = os.statvfs(self.path)
            with contextlib.suppress(OSError):  # somebody took the rest meanwhile: it is full
                os.posix_fallocate(filler, 0, max(1, room.f_bavail * room.f_frsize))
        finally:
            os.close(filler)

    def empty(self) -> None:
        """Give back what `fill` took."""
        (self.path / FILLER).unlink(missing_ok=True)
