"""`slurm:[PORT]`: the nodes of this Slurm job, each with a p2psgd node.

SLURM_JOB_NODELIST holds them in Slurm's short form, and `scontrol show hostnames` expands it, as Slurm's
manual advises. In a heterogeneous job each component has a list of its own, SLURM_JOB_NODELIST_HET_GROUP_n;
all of them count. All nodes of a job get the same list in the same order, so it gives ranks.

The tasks of a job array are jobs of their own that start and end one by one. Those that run now form the
list, by `squeue`: it has no order to rely on, and is asked for again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from p2psgd.base.bounded_command import CommandFailed, run_bounded
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import HOSTS_MAX, PORT_DEFAULT, Address, parse_hosts
from p2psgd.net.peer_sources.source import PeerSource

COMMAND_S: Final = 10.0
OUTPUT_BYTES_MAX: Final = 1024 * 1024
HET_GROUPS_MAX: Final = 128  # Slurm's own limit, MAX_HET_JOB_COMPS


def from_slurm(argument: str, environment: Mapping[str, str] = os.environ) -> PeerSource:
    """Return the source of this job's nodes, which all listen on the port in `argument`, or on the default
    one if it is empty; UsageError if that is not a port.
    """
    if argument and not (re.fullmatch("[0-9]{1,5}", argument) and 1 <= int(argument) <= 65535):
        raise UsageError(f"--peers slurm:[PORT]: {argument!r:.80} is not a port within 1 to 65535")
    port = int(argument) if argument else PORT_DEFAULT
    array = environment.get("SLURM_ARRAY_JOB_ID", "")

    def ask() -> tuple[Address, ...]:
        lists = _lists_of_array(array) if array else _lists_of_job(environment)
        names = _run("scontrol", "show", "hostnames", ",".join(lists)) if lists else ""
        return parse_hosts("\n".join(f"{name}:{port}" for name in names.split()), f"slurm:{argument}")

    return PeerSource(f"slurm:{argument}", ask, ordered=not array, again=bool(array))


def _lists_of_job(environment: Mapping[str, str]) -> list[str]:
    """Return the job's lists of nodes, one for each of its components; UsageError outside of a job."""
    size = environment.get("SLURM_HET_SIZE", "")
    count = min(int(size), HET_GROUPS_MAX) if re.fullmatch("[0-9]{1,5}", size) else 0
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(count)]
    lists = [environment[name] for name in names if environment.get(name)]
    lists = lists or [environment[name] for name in ("SLURM_JOB_NODELIST",) if environment.get(name)]
    if not lists:
        words = (
            "--peers slurm: there is no SLURM_JOB_NODELIST in the environment, so this is not a Slurm job: "
            "start the node by sbatch, salloc or srun, or give another source"
        )
        raise UsageError(words, ExitCode.CONFIGURATION)
    return lists


def _lists_of_array(job: str) -> list[str]:
    """Return the lists of nodes of the tasks of this job array that run now."""
    found = _run("squeue", "--noheader", "--states=RUNNING", f"--jobs={job}", "--format=%N")
    return [each for each in found.split() if each][:HOSTS_MAX]


def _run(*command: str) -> str:
    try:
        return run_bounded(command, timeout_s=COMMAND_S, bytes_max=OUTPUT_BYTES_MAX).decode(errors="replace")
    except CommandFailed as error:
        words = f"--peers slurm: {command[0]} {error}"
        if error.missing:
            words += "; it comes with Slurm's client programs, and must be in PATH where the node runs"
        raise UsageError(words, ExitCode.CONFIGURATION if error.missing else ExitCode.TEMPORARY) from None
