"""Files that survive a power cut, the layout of a state directory, and disk work in threads."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, TypeVar

from p2psgd.base import formatting
from p2psgd.base.aio import in_daemon_thread

# ----------------------------------------------------------------------------
# Work that a thread does on the disk, and how long the disk has been at it.
#
# A disk may hang: a volume on a network that is gone, a device that answers nothing. The thread then waits
# in the kernel, where no signal reaches it, and all that can be done is to say so. Every piece of work has a
# thread of its own, which the process does not wait for when it ends.


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

OWN_UPDATES: Final = "this node's own updates"


class DiskWork:
    """The disk work under way; more than `limit_s` seconds are too long."""

    def __init__(self, limit_s: float, own_busy_since: Callable[[], float | None]) -> None:
        """Take `own_busy_since`: when the thread of the own updates began its present work, monotonic."""
        self._limit_s = limit_s
        self._own_busy_since = own_busy_since
        self._begun: dict[object, tuple[float, str]] = {}

    async def do(
        self,
        what: str,
        work: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Do the work in a thread; `what` is its name for people."""
        key = object()
        self._begun[key] = time.monotonic(), what
        try:
            return await in_daemon_thread(what, partial(work, *args, **kwargs))
        finally:
            del self._begun[key]

    def overdue(self, now: float) -> str:
        """Describe in one sentence the work that has taken too long; empty if there is none."""
        since, _ = self._oldest(now)
        return self.under_way(now) if now - since > self._limit_s else ""

    def under_way(self, now: float) -> str:
        """Describe in one sentence the work that has taken longest."""
        since, what = self._oldest(now)
        return f"the disk has been at {what} for {formatting.duration(now - since)}"

    def _oldest(self, now: float) -> tuple[float, str]:
        own = self._own_busy_since()
        begun = [*self._begun.values(), *([] if own is None else [(own, OWN_UPDATES)])]
        return min(begun, default=(now, "nothing"))


# ----------------------------------------------------------------------------
# Files that appear whole or not at all, and directories, also across a power cut.


FRESH_SUFFIX: Final = ".new"  # of a file that is being written
FILE_MODE: Final = 0o640  # weights and votes are not for everybody, also in a directory made by hand
DIRECTORY_MODE: Final = 0o750


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is whole and on disk; `mode` less the umask decides
    who may use it.

    Nothing changes if the with block raises. OSError if it cannot be written.
    """
    fresh = path.with_name(f".{path.name}{FRESH_SUFFIX}")
    try:
        fresh.unlink(missing_ok=True)  # of a process that was killed; it may have another mode
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def make_directory(place: Path, *, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory unless there is one, and those above it that are missing; each is on disk in the one
    above it when this returns. OSError if that cannot be done.
    """
    if place.is_dir():
        return
    make_directory(place.parent, mode=0o777)  # others may keep something there
    place.mkdir(mode=mode, exist_ok=True)
    sync_folder(place.parent)


def numbered(folder: Path, prefix: str, suffix: str) -> list[int]:
    """Return the numbers between prefix and suffix in the names of a folder's files, ascending; none if
    the folder does not exist.

    OSError if it cannot be looked into.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    ours = (name for name in names if name.startswith(prefix) and name.endswith(suffix))
    texts = (name.removeprefix(prefix).removesuffix(suffix) for name in ours)
    return sorted(int(text) for text in texts if text.isascii() and text.isdecimal())


def sync_folder(folder: Path) -> None:
    """Wait until names made, changed or removed in this folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------
# The layout of a node's state directory: where the parts of a run lie.


FOLDER: Final = "run"  # checkpoints and own updates
VOTES_NAME: Final = "votes.json"
NODE_NAME: Final = "node.json"  # id, name and life


def giving_up(state: Path) -> str:
    """Return the command with which a person gives up what a node that does not run has of its run; the node
    stays the same one.
    """
    return _removing(state, FOLDER, VOTES_NAME)


def becoming_another(state: Path) -> str:
    """Describe how a person replaces a node that must not go on as itself, since its votes are lost, and what
    that costs: the end of a sentence. The id must be another, for the votes are the node's, in every
    incarnation.
    """
    export = f"p2psgd checkpoint export FILE --state {shlex.quote(str(state))}"
    return (
        f"`{_removing(state, NODE_NAME, FOLDER, VOTES_NAME)}` and a start make it a new node with the "
        "weights of its peers; what of its own updates no peer has is then lost, and without peers the "
        f"weights are, unless `{export}` has saved them; `p2psgd remove NODE` on a peer takes the former "
        "node out, and with --tls the new one needs a certificate of its own"
    )


def _removing(state: Path, *names: str) -> str:
    return " ".join(["rm -rf", *(shlex.quote(str(state / name)) for name in names)])
