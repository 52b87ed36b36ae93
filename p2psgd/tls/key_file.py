"""Files that hold a private key: made for their owner alone, never in place of another, and refused if others
can read them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from p2psgd.errors import ExitCode, UsageError, cannot


def write_key(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read, whatever the umask; OSError if there is one already.

    If it cannot be written to its end, it is gone again.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def missing(path: Path) -> UsageError:
    """A file of a TLS directory is not there."""
    words = f"there is no {path}: `p2psgd ca issue` makes a directory with all that a node needs"
    return UsageError(words, ExitCode.CONFIGURATION)


def check_key_file(path: Path) -> None:
    """UsageError unless it is a file of this user or of root that others cannot touch.

    PostgreSQL's rule: the group may read a file of root's (systemd gives credentials to a service by an
    access control list, which shows as the group's bits); of a file of one's own only the owner may.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise cannot(f"read {path}", error) from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is no file", ExitCode.CONFIGURATION)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{path} belongs to user {found.st_uid}, who can read it: `chown {os.geteuid()} {path}`",
            ExitCode.PERMISSION,
        )
    if mode & (0o037 if found.st_uid == 0 else 0o077):
        raise UsageError(
            f"others can read or change {path} (its mode is {mode:04o}): `chmod 600 {path}`, and if they may "
            "have read it, issue the node a new one with `p2psgd ca issue --renew`",
            ExitCode.PERMISSION,
        )
