"""Define the errors of p2psgd, typed by who must act.

P2psgdError
 +-- PeerError      a peer broke the protocol (p2psgd.wire.reject): drop that connection, count it, go on
 +-- UsageError     configuration, command line, data or recipe: one sentence and an exit code
 |    +-- StoreError        the data store gives no data, or wrong data; a later attempt may succeed
 |    +-- CheckpointError   a checkpoint is damaged, or cannot be written
 |         +-- CheckpointUnreadable   the disk does not return it now: it may be intact
 +-- TrainerError   the training script used its link wrongly, or the daemon refused what it sent
      +-- DaemonLost    the daemon at the other end of the link is gone

Any other exception is a bug in p2psgd: the process ends and its supervisor starts it again.
"""

from __future__ import annotations

import enum
import errno
from typing import Final


class ExitCode(enum.IntEnum):
    """Process exit codes, from sysexits.h where it has a fitting one; APPEND ONLY."""

    OK = 0
    FAILED = 1  # the command came to its end and found something wrong (replicas differ, a node was lost)
    USAGE = 64
    DATA = 65
    TRAINER = 69  # the training script failed, and would again
    INTERNAL = 70
    TEMPORARY = 75
    PERMISSION = 77
    CONFIGURATION = 78


# A person must act before another start can help; `p2psgd.service` does not retry these.
FINAL: Final = frozenset(
    {ExitCode.USAGE, ExitCode.DATA, ExitCode.TRAINER, ExitCode.PERMISSION, ExitCode.CONFIGURATION}
)

# A disk that is full or fails for a moment, memory or descriptors that are short: to try again may help.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def exit_code_of(error: OSError) -> ExitCode:
    """Return TEMPORARY for a file error that may pass, PERMISSION if a person must act."""
    return ExitCode.TEMPORARY if error.errno in _PASSING else ExitCode.PERMISSION


def words_of(error: OSError) -> str:
    """Return the system's description of an error in a few lower-case words."""
    return (error.strerror or str(error)).lower()


class P2psgdError(Exception):
    """Root of all exceptions that p2psgd raises on purpose."""


class UsageError(P2psgdError):
    """A person can fix the cause; the message is one sentence that says what is wrong and how to fix it.

    `exit_code` is the exit code of a command that ends with this error.
    """

    def __init__(self, words: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def cannot(do: str, error: OSError) -> UsageError:
    """Return a UsageError for a file on which the system refuses an operation, `do`."""
    return UsageError(f"cannot {do}: {words_of(error)}", exit_code_of(error))


STORE: Final = "the data store "  # how each StoreError begins, by which a daemon knows its trainer's


MEETING: Final = (
    "the nodes of torchrun's job have not met"  # by which a daemon knows that its agent waited in vain
)


class StoreError(UsageError):
    """The data store repeatedly gives no data, or other data than its list describes.

    A trainer that ends with this error is started again as long as its node runs; the node itself goes on.
    """

    def __init__(self, place: str, words: str) -> None:
        super().__init__(f"{STORE}{place} {words}", ExitCode.TEMPORARY)


class CheckpointError(UsageError):
    """A checkpoint cannot be read or written; an older one may be intact."""

    def __init__(self, words: str) -> None:
        super().__init__(words, ExitCode.DATA)


class CheckpointUnreadable(CheckpointError):
    """A checkpoint, or their directory, cannot be read now; its content is unknown."""


class TrainerError(P2psgdError):
    """The link refuses a call of the training script; nothing of that call was applied or sent."""


class DaemonLost(TrainerError):
    """The daemon closed the link or died; weights and residual survive only on its peers and its disk."""
