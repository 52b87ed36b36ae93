"""Is there memory for a run of P weights? The one place that says how much a node takes.

Bytes a weight, in async mode and in a sparse ring: daemon 4 for the coordinates, 4 for the copy that
checkpoints and snapshots are made from and 4 for a second one; 12 shared with the trainer for the residual,
twice and once more for a checkpoint; trainer 4 for its working copy, 4 for a gradient and 4 for the delta.
In a dense ring there is no residual; instead the daemon has 4 for the next weights, and shares 16 with the
trainer for shares, arrays and two rounds' sums. With a GPU the trainer's part is on the device. Measured with
20 million weights and one node: 35 and 18 beside what the processes take.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.ipc.layout import dense_numbers, inbox_bytes, outbox_bytes
from p2psgd.ops import numerals
from p2psgd.wire.mode import Mode

CHECK: Final = "memory"
DAEMON_EACH: Final = 12
RESIDUAL_EACH: Final = 12
DENSE_EACH: Final = 16
TRAINER_EACH: Final = 12
PROCESSES_BYTES: Final = 128 * 1024 * 1024  # the code and data of two Python processes with numpy
LOG_BYTES: Final = 256 * 1024 * 1024  # --log-budget, unless it is told otherwise


@dataclass(frozen=True, slots=True)
class Available:
    """What this machine gives: bytes, and what limits them."""

    size: int
    limit: str


def bytes_needed(weights: int, mode: Mode) -> int:
    """The most that daemon and trainer take together for a run of so many weights, its log included."""
    each = DAEMON_EACH + TRAINER_EACH
    shared = RESIDUAL_EACH * weights
    if mode.dense:
        each += 4
        shared = DENSE_EACH * dense_numbers(weights)
    rings = inbox_bytes(weights) + outbox_bytes(weights, mode)
    return each * weights + shared + rings + LOG_BYTES + PROCESSES_BYTES


def check_memory(weights: int | None, mode: Mode, available: Available | None) -> Finding:
    """Against what is there now."""
    if weights is None:
        return note(CHECK, "not checked: how large the run is was not said", "--weights P, or --recipe NAME")
    needed = bytes_needed(weights, mode)
    what = f"{weights:,} weights take up to {numerals.size(needed)}"
    if available is None:
        return note(CHECK, f"{what}; this machine does not say how much it has")
    words = f"{what}, {numerals.size(available.size)} are free ({available.limit})"
    if needed > available.size:
        return problem(
            CHECK, words, "end what else runs here, take a machine with more memory, or a smaller net"
        )
    return ok(CHECK, f"{words}; a script's data come on top")


def find_available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Available | None:
    """The machine's free memory, or what is left of this process's control group, whichever is less."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    machine = Available(1024 * int(found[1]), "of the machine")
    try:
        own = re.search(r"^0::(/\S*)$", (proc / "self" / "cgroup").read_text(), re.MULTILINE)
    except OSError:
        return machine
    here = cgroups / (own[1].lstrip("/") if own else "")
    groups = [_left_of(each) for each in (here, *here.parents) if each.is_relative_to(cgroups)]
    return min([machine, *(each for each in groups if each is not None)], key=lambda each: each.size)


def _left_of(group: Path) -> Available | None:
    """Within the limit of a control group; None if it has none."""
    try:
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        return Available(max(0, int(limit) - int(used)), "of the control group's limit")
    except (OSError, ValueError):
        return None
