"""How many descriptors this process may have open, and which of them are kept for its own files.

The kernel gives a new descriptor the lowest number that is free. So a connection that gets one of the last
numbers says that all before them are taken. No connection of a peer or a browser keeps such a number: the
last ones are for votes, checkpoints, a trainer's memory and the like, for which there is room however many
connect. A trainer and commands of this machine may have the first half of them for their connections.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import Final

from p2psgd.errors import ExitCode, UsageError

DESCRIPTORS_MIN: Final = 64  # a daemon with a trainer takes half of them, and what is below is never enough
# A trainer's memory, pipes and state take 20 at most, names that are being looked up 16, files that are being
# written 8; the rest is for commands.
RESERVE_MAX: Final = 64
_RESERVE_SHARE: Final = 3 / 8  # of a small limit


def raise_limit() -> None:
    """Let this process, and what it starts, open as many files as it may at all.

    UsageError if that is too few for a daemon.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        raise UsageError(
            f"only {soft} files may be open at once, and a node needs {DESCRIPTORS_MIN} at the least: raise "
            "the hard limit (ulimit -n, or LimitNOFILE= in the unit)",
            ExitCode.CONFIGURATION,
        )


def connections_end(limit: int, *, local: bool = False) -> int:
    """The first number that no connection may have if `limit` files may be open; `local`: none of this
    machine's trainer and commands.
    """
    reserve = min(RESERVE_MAX, int(limit * _RESERVE_SHARE))
    return limit - (reserve // 2 if local else reserve)


def is_reserved(descriptor: int, *, local: bool = False) -> bool:
    """Whether a connection has a number that is kept for this process's own files, and is to be closed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= connections_end(limit, local=local)


def has_room() -> bool:
    """Whether a connection that is opened now may stay."""
    try:
        lowest = os.dup(0)
    except OSError as error:
        return error.errno == errno.EBADF  # then 0 itself is free
    os.close(lowest)
    return not is_reserved(lowest)


def describe_shortage() -> str:
    """What to say when connections have to be refused."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    end = connections_end(limit)
    return (
        f"all of the first {end:,} descriptors are taken, and the last {limit - end} of {limit:,} are kept "
        "for this node's own files: further connections are refused until some end; to let in more, raise "
        "the limit (ulimit -n, or LimitNOFILE= in the unit) and start it again"
    )
