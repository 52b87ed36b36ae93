"""What must hold beside equal replicas, as pure functions: nothing found is an empty answer."""

from __future__ import annotations

import re
import signal
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from p2psgd.base.errors import ExitCode
from p2psgd.cli.local.verify import Origin
from tests.chaos.nodes import Memory

ANY: Final = frozenset(
    {
        *("kill -9 of a daemon", "daemon stopped for a while", "clean stop and start", "power cut of all"),
        *("link cut", "one-way link", "cable of 1 Mbit/s", "disk full"),
    }
)
FLIPPED: Final = "bit flipped in memory"
# What a daemon may say as an error, and the kinds of fault (faults.kind) of this round or the one before that
# explain it. Everything else that it logs as an error fails the run.
EXPLAINED: Final[Mapping[str, frozenset[str]]] = {
    "no space left on device": frozenset({"disk full"}),
    "no peer has acknowledged this node's last": frozenset({"clean stop and start"}),
    "% full, held back by": ANY,
    "the weights in memory differ from what was applied": frozenset({FLIPPED}),
    "copy of the weights was not what its node has": frozenset({FLIPPED}),  # it had taken them from there
}
# With what words a daemon ends of its own accord, to be started again, and the event that must tell of it.
DECIDED: Final[Mapping[str, str]] = {
    "no log holds them any more": "abandoned",
    "after a restart it continues from its checkpoint": "quarantine",
    "there is no usable checkpoint; after a restart it begins anew": "quarantine",
}
BUGS: Final = ("internal error", "Traceback (most recent call last)")
CRASHED: Final = "the trainer crashed"
KILLED: Final = "the trainer crashed (killed by signal 9)"

# A daemon may grow by this from the first to the last quiet point of a life, and by so many bytes for each
# byte of its log: an update of 1.5 kB is an object, and an entry in an index, of its own (measured: 1.1).
OWN_KIB_MAX: Final = 12 * 1024
OWN_PER_LOG_BYTE: Final = 1.25
SLOPE_KIB_PER_MINUTE_MAX: Final = 1024
# Python keeps what a log took that was full for the first time: in mode `owners`, whose updates are many and
# small, 3 MiB in the first minute, and then no more.
WARM_UP: Final = 2  # quiet points that are not part of the slope
SLOPE_OVER: Final = (4, 75.0)  # further quiet points and seconds: fewer are no slope
DESCRIPTORS_MAX: Final = 8  # more than at the life's first two quiet points


def faults_in_log(lines: Iterable[str], kinds: Collection[str]) -> list[str]:
    """The lines that no fault of these kinds explains."""
    return [line for line in lines if _is_fault(line) and not _explained(line, kinds)]


def _is_fault(line: str) -> bool:
    if CRASHED in line:
        return KILLED not in line
    if "copy of the weights" in line:
        return True
    return any(bug in line for bug in BUGS) or re.search(r" (ERROR|CRITICAL) ", line) is not None


def _explained(line: str, kinds: Collection[str]) -> bool:
    if any(bug in line for bug in BUGS):
        return False
    return any(words in line.lower() and by & set(kinds) for words, by in EXPLAINED.items())


def fault_of_ending(
    code: int,
    asked: Collection[signal.Signals],
    last_line: str,
    kinds: Collection[str],
    *,
    answered: bool,
    noted: Collection[str] = (),
) -> str | None:
    """A sentence on a daemon's exit code, if it is not what was asked of it.

    `noted`: the kinds of its life's events. One that had not `answered` to anything yet may have been too
    young to catch SIGTERM.
    """
    if code == 0 and signal.SIGTERM in asked:
        return None
    if -code in asked and not (answered and code == -signal.SIGTERM):
        return None
    if code == ExitCode.TEMPORARY and any(
        words in last_line and by in noted for words, by in DECIDED.items()
    ):
        return None
    if code == ExitCode.TEMPORARY and _explained(last_line, kinds):
        return None
    wanted = f"{' and '.join(sorted(each.name for each in asked)) or 'nothing'} was sent"
    return f"ended with exit code {code}, {wanted}: {last_line}"


def growth(memories: Sequence[Memory]) -> list[str]:
    """Sentences on what grew more than it may over the quiet points of one life."""
    if len(memories) < 2:
        return []
    first, last = memories[0], memories[-1]
    found = []
    own = [memory.own_kib - OWN_PER_LOG_BYTE * memory.log_bytes / 1024 for memory in memories]
    if own[-1] - own[0] > OWN_KIB_MAX:
        found.append(
            f"grew from {first.own_kib} to {last.own_kib} KiB while its log went from {first.log_bytes} to "
            f"{last.log_bytes} bytes"
        )
    points, seconds = SLOPE_OVER
    minutes = [memory.at / 60 for memory in memories[WARM_UP:]]
    if len(minutes) >= points and 60 * (minutes[-1] - minutes[0]) >= seconds:
        slope = statistics.linear_regression(minutes, own[WARM_UP:]).slope
        if slope > SLOPE_KIB_PER_MINUTE_MAX:
            found.append(f"grows by {slope:.0f} KiB a minute beyond its log")
    usual = max(memory.descriptors for memory in memories[:2])  # its trainer may come after the first
    if last.descriptors - usual > DESCRIPTORS_MAX:
        found.append(f"has {last.descriptors} descriptors open, at first {usual}")
    return found


def forgotten(before: Mapping[Origin, int], now: Mapping[Origin, int]) -> list[str]:
    """Sentences on updates that all nodes had applied at one quiet point and lack at the next."""
    return [
        f"all had applied update {sequence} of {origin[0]}/{origin[1]}, now all end at {now.get(origin, 0)}"
        for origin, sequence in before.items()
        if now.get(origin, 0) < sequence
    ]
