"""The instruction-set paths of the C++ core: which there are, which runs, and how to force one.

Each holds the same functions with the same results, compiled for other instructions (native/paths.hpp). At
import the best that this processor runs is taken, or the one that $P2PSGD_CPU names: for measuring, for
tests, and to distinguish a fault of one path from a fault of all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.wire import _native

VARIABLE: Final = "P2PSGD_CPU"


@dataclass(frozen=True, slots=True)
class CpuPath:
    """A path: its name, what it demands of a processor, and whether this one has that."""

    name: str
    demand: str
    runs_here: bool


def cpu_paths() -> tuple[CpuPath, ...]:
    """Return all paths of this build, the slowest, `portable`, first."""
    return tuple(CpuPath(*path) for path in _native.paths())


def cpu_path() -> str:
    """Return the name of the path in use."""
    return _native.path()


def use_cpu_path(name: str) -> None:
    """Use this path from now on, in the whole process; ValueError if it does not run here, or is not
    a path.
    """
    _native.use_path(name)


def forced_cpu_path() -> str | None:
    """Return the name in $P2PSGD_CPU, None if it is not set or empty."""
    return os.environ.get(VARIABLE) or None


def obey_environment() -> None:
    """Use the path that $P2PSGD_CPU names, if it names one; UsageError if that does not run here."""
    name = forced_cpu_path()
    if name is None:
        return
    try:
        use_cpu_path(name)
    except ValueError as error:
        raise UsageError(f"{VARIABLE}: {error}", ExitCode.CONFIGURATION) from None


obey_environment()
