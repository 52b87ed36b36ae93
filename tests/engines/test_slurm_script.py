"""The Slurm script without Slurm: when a task starts its node again, and when the job is queued again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import DEADLINE_S
from tests.operations.machines import CHECKOUT

SCRIPT = CHECKOUT / "engines" / "slurm" / "p2psgd.sbatch"
STUBS = {
    "srun": 'while [ "$1" != sh ]; do shift; done; exec "$@"',
    # A node ends with the next of these exit codes.
    "p2psgd": 'read -r code <"$CODES"; sed -i 1d "$CODES"; echo node >>"$SAID"; exit "$code"',
    "sleep": '[ -z "$STOP" ] || kill -TERM $PPID; exit 0',  # SIGTERM for the task as it has begun to wait
    "scontrol": 'echo "$1" >>"$SAID"',
}


def run(folder: Path, codes: str, *, stop: bool = False, run_dir: str = "run") -> tuple[int, list[str]]:
    """Run it with stubs; return its exit code, and what was started and ordered."""
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "run").mkdir()
    (folder / "codes").write_text("\n".join(codes.split()) + "\n")
    (folder / "said").touch()
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "RUN_DIR": str(folder / run_dir),
        "CODES": str(folder / "codes"),
        "SAID": str(folder / "said"),
        "STOP": "1" if stop else "",
    }
    ended = subprocess.run(["bash", str(SCRIPT)], env=environment, timeout=DEADLINE_S, check=False)
    assert not list((folder / "run").iterdir()), "it leaves no file"
    return ended.returncode, (folder / "said").read_text().split()


@pytest.mark.parametrize(
    ("codes", "code", "said"),
    [
        ("75 137 0", 0, ["node", "node", "node"]),
        ("75 78", 78, ["node", "node"]),  # what a person must repair
    ],
)
def test_a_node_that_ends_with_what_may_pass_is_started_again(
    tmp_path: Path, codes: str, code: int, said: list[str]
) -> None:
    assert run(tmp_path, codes) == (code, said)


def test_a_stop_between_two_lives_of_a_node_queues_the_job_again(tmp_path: Path) -> None:
    assert run(tmp_path, "75 0", stop=True) == (0, ["node", "requeue"])


def test_a_folder_that_takes_no_file_does_not_change_the_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "75 0", stop=True, run_dir="none") == (75, ["node"])
