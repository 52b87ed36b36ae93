"""Starts a way on its hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.rivals.cases import Case, Setting, Task
from benchmarks.rivals.hosts import Place
from benchmarks.rivals.job import Job
from benchmarks.rivals.p2psgd_way import state_directory

ROOT: Final = Path(__file__).parents[2]
RIVALS_PYTHON: Final = ROOT / ".venv-rivals" / "bin" / "python"
PORT: Final = 7315
MEETING_PORT: Final = 29_400
RESTARTS: Final = 3
LAST_CALL_S: Final = 5


def start(task: Task, case: Case, setting: Setting, all_places: Sequence[Place], directory: Path) -> None:
    """On all hosts, each of whose processes ends with its place."""
    starter = STARTERS[case.way.module]
    environment = {
        "PYTHONPATH": str(ROOT),
        # As PyTorch does it; by hivemind's own way what it shares stays in memory after a kill.
        "HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor",
        # Else torchrun's processes begin again with each other's old addresses: an agent whose process failed
        # counts a restart, one that follows it does not, and by that number they look each other up.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    addresses = tuple(place.address for place in all_places)
    for place in all_places:
        job = Job(
            directory=str(directory),
            host=place.number,
            addresses=addresses,
            task_name=task.name,
            seed=case.seed,
            setting=dict(setting),
            options=dict(case.way.options),
        )
        for name, command in starter(case, job, job.write()).items():
            log = directory / f"host-{place.number}.{name}.log"
            place.start(command, log, environment)


Commands = Mapping[str, Sequence[str]]  # by the names of their logs


def _ddp(case: Case, job: Job, path: Path) -> Commands:
    """By torchrun, which starts the others again, where one is killed."""
    module = ["-m", "benchmarks.rivals.ddp", str(path)]
    if case.fault != "killed":
        return {"trainer": [sys.executable, *module]}
    elastic = [
        f"--nnodes={job.hosts - 1}:{job.hosts}",
        "--nproc-per-node=1",
        f"--max-restarts={RESTARTS}",
        "--rdzv-id=rivals",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={job.addresses[0]}:{MEETING_PORT}",
        # Who host 0 is it would look up by a name that all share, and wait 30 s for others that may come.
        f"--rdzv-conf=is_host={int(job.host == 0)},last_call_timeout={LAST_CALL_S}",
        f"--local-addr={job.addresses[job.host]}",
    ]
    return {"trainer": [sys.executable, "-m", "torch.distributed.run", *elastic, *module]}


def _hivemind(case: Case, job: Job, path: Path) -> Commands:
    return {"trainer": [str(RIVALS_PYTHON), "-m", "benchmarks.rivals.hivemind_way", str(path)]}


def _p2psgd(case: Case, job: Job, path: Path) -> Commands:
    directory = Path(job.directory)
    listed = [f"{address}:{PORT}" for address in job.addresses]
    peers = directory / f"host-{job.host}.peers"
    peers.write_text("".join(f"{each}\n" for each in listed))  # the same for all: their shares are by it
    state = state_directory(directory, job.host)
    node = ["node", "--state", str(state), "--name", state.name, "--peers", str(peers)]
    node += ["--listen", listed[job.host], "--insecure-plaintext"]
    return {
        "daemon": [sys.executable, "-m", "p2psgd", *node],
        "trainer": [sys.executable, "-m", "benchmarks.rivals.p2psgd_way", str(path)],
    }


STARTERS: Final[Mapping[str, Callable[[Case, Job, Path], Commands]]] = {
    "ddp": _ddp,
    "hivemind_way": _hivemind,
    "p2psgd_way": _p2psgd,
}


def why_not(module: str) -> str:
    """A sentence if this way cannot run here."""
    if module == "hivemind_way" and not os.access(RIVALS_PYTHON, os.X_OK):
        return "hivemind is not installed: `make rivals` puts it into .venv-rivals"
    return ""
