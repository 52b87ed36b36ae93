"""Whether a file can be written, asked before the hours of work that it is to hold."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2psgd.errors import UsageError


def check_output(path: Path, what: str) -> None:
    """UsageError unless a file of this name, which is `what`, can be written; leaves nothing behind."""
    if path.is_dir():
        raise UsageError(f"the {what} cannot be written to {path}: it is a directory; give a file name")
    with refusing(f"the {what} cannot be written to {path}"):
        descriptor, trial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.close(descriptor)
        os.unlink(trial)


@contextmanager
def refusing(trouble: str) -> Iterator[None]:
    """Turn the operating system's refusal into one sentence."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        hints = {
            errno.ENOENT: "make the directory first",
            errno.EACCES: "choose a directory you may write to",
        }
        hint = hints.get(error.errno or 0, "choose another place")
        raise UsageError(f"{trouble}: {reason}; {hint}") from error
