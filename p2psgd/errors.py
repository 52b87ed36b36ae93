"""The errors of p2psgd, typed by who has to act.

P2psgdError
 +-- PeerError      a peer broke the protocol: drop that connection, count the reason, go on
 +-- UsageError     configuration, command line, data or recipe: one sentence and an exit code
 |    +-- StoreError        where the data are gives none, or wrong ones: it may later
 |    +-- RecordingError    a file that is no recording, or from some place on is none
 |    +-- CheckpointError   a checkpoint that is damaged, or cannot be written
 |         +-- CheckpointUnreadable   one that the disk does not give, now: it may be whole
 +-- TrainerError   the training script used its link wrongly, or the daemon refused what it sent
      +-- DaemonLost    the daemon that the link led to is gone

Anything else that is raised is a bug of ours: the process ends and its supervisor starts it again.
"""

from __future__ import annotations

import enum
import errno
from typing import Final


class ExitCode(enum.IntEnum):
    """Process exit codes, from sysexits.h where it has one that fits; APPEND ONLY."""

    OK = 0
    FAILED = 1  # the run ended, but not as promised (replicas differ, a node was lost)
    USAGE = 64
    DATA = 65
    INTERNAL = 70
    TEMPORARY = 75
    PERMISSION = 77
    CONFIGURATION = 78


# A disk that is full or fails for a moment, memory or descriptors that are short: to try again may help.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def exit_code_of(error: OSError) -> ExitCode:
    """Of a file that cannot be used: TEMPORARY if it may go well later, PERMISSION if a person must act."""
    return ExitCode.TEMPORARY if error.errno in _PASSING else ExitCode.PERMISSION


def words_of(error: OSError) -> str:
    """What the system says went wrong, in a few lower-case words."""
    return (error.strerror or str(error)).lower()


class P2psgdError(Exception):
    """Root of everything p2psgd raises on purpose."""


class PeerError(P2psgdError):
    """A peer sent something that the protocol forbids; `reason` is the short word the status counts it
    under.
    """

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class UsageError(P2psgdError):
    """Something a person can mend; the message is one sentence that says what and how."""

    def __init__(self, words: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def cannot(do: str, error: OSError) -> UsageError:
    """A UsageError for a file with which the system refuses to `do` something."""
    return UsageError(f"cannot {do}: {words_of(error)}", exit_code_of(error))


STORE: Final = "the data store "  # how each StoreError begins, by which a daemon knows its trainer's


class StoreError(UsageError):
    """The place where the data are does not give them, or gives others than its list says, again and again.
    A trainer that ends with it is started again as long as its node runs: the node itself goes on.
    """

    def __init__(self, place: str, words: str) -> None:
        super().__init__(f"{STORE}{place} {words}", ExitCode.TEMPORARY)


class RecordingError(UsageError):
    """A recording cannot be read, or not to its end; what was read of it before holds."""

    def __init__(self, words: str) -> None:
        super().__init__(words, ExitCode.DATA)


class CheckpointError(UsageError):
    """A checkpoint cannot be read, or not be written; an older one may be whole."""

    def __init__(self, words: str) -> None:
        super().__init__(words, ExitCode.DATA)


class CheckpointUnreadable(CheckpointError):
    """A checkpoint, or the folder of all, cannot be read now; nothing is known of what is in it."""


class TrainerError(P2psgdError):
    """The training script and its link disagree; nothing of the refused call was applied or sent."""


class DaemonLost(TrainerError):
    """The daemon closed the link or died; weights and residual live on in no other place than its peers."""
