"""Can the node keep its state, and is there room for it? Makes nothing that stays."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.errors import words_of
from p2psgd.ops import numerals

CHECK: Final = "state"
CHECKPOINTS: Final = 3  # two are kept while the next is written
CHECKPOINT_EACH: Final = 8  # bytes a weight: coordinates and residual
LOG_BYTES: Final = 1024 * 1024 * 1024  # --log-disk-budget, unless it is told otherwise


def check_state_directory(
    state: Path, weights: int | None, *, free_bytes: int | None = None
) -> list[Finding]:
    """`free_bytes`: of its disk, by default as it is."""
    place = state.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        words = f"{place} is no directory, so {state} cannot be the state directory"
        return [problem(CHECK, words, "give another one with --state DIR, or P2PSGD_STATE=DIR")]
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"p2psgd")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        words = f"{place} cannot be written to: {words_of(error)}"
        mend = f"sudo install -d -o {os.geteuid()} -m 750 {state}, or another one with --state DIR"
        return [problem(CHECK, words, mend)]
    found = [_check_room(place, state, weights, free_bytes)]
    if _in_use(state):
        found.append(note(CHECK, f"a daemon is using {state}"))
    return found


def bytes_needed(weights: int) -> int:
    """Of the state directory of a run of so many weights, without what a script keeps."""
    return CHECKPOINTS * CHECKPOINT_EACH * weights + LOG_BYTES


def _check_room(place: Path, state: Path, weights: int | None, free_bytes: int | None) -> Finding:
    if free_bytes is None:
        disk = os.statvfs(place)
        free_bytes = disk.f_bavail * disk.f_frsize
    words = f"{state} can be written to, {numerals.size(free_bytes)} are free on its disk"
    if weights is None:
        least, what = LOG_BYTES, "the log"
    else:
        least, what = bytes_needed(weights), f"checkpoints of {weights:,} weights and the log"
    if free_bytes >= least:
        return ok(CHECK, f"{words}; up to {numerals.size(least)} are for {what}")
    words = f"{words}, but up to {numerals.size(least)} are for {what}"
    mend = "another disk with --state DIR, or a smaller --log-disk-budget MIB (0: no log on disk)"
    if weights is None or free_bytes >= CHECKPOINTS * CHECKPOINT_EACH * weights:
        return note(CHECK, words, mend)
    return problem(CHECK, words, mend)


def _in_use(state: Path) -> bool:
    """A daemon holds its lock."""
    try:
        lock = os.open(state / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
