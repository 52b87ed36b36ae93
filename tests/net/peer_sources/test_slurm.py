"""--peers slurm: what it makes of a job's environment, with programs in the place of Slurm's that answer as
those do; tests/engines runs it in a real Slurm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.peer_sources.slurm import from_slurm

SCONTROL = '[ "$1 $2" = "show hostnames" ] || exit 1; echo "$3" | tr , "\\n"'
SQUEUE = '[ "$3" = --jobs=17 ] || exit 1; echo c1; echo c4,c5'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, script in (("scontrol", SCONTROL), ("squeue", SQUEUE)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def names(environment: Mapping[str, str], argument: str = "") -> list[str]:
    return [str(address) for address in from_slurm(argument, environment).ask()]


@pytest.mark.usefixtures("slurm")
def test_a_jobs_nodes_are_in_its_order_and_have_ranks() -> None:
    environment = {"SLURM_JOB_NODELIST": "c2,c1"}
    assert names(environment) == ["c2:7315", "c1:7315"]
    assert names(environment, "7400") == ["c2:7400", "c1:7400"]
    source = from_slurm("", environment)
    assert (source.ordered, source.again) == (True, False)


@pytest.mark.usefixtures("slurm")
def test_all_components_of_a_heterogeneous_job_count() -> None:
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": each for number, each in enumerate(("a1,a2", "b1"))}
    environment = {"SLURM_JOB_NODELIST": "b1", "SLURM_HET_SIZE": "2", **groups}
    assert names(environment) == ["a1:7315", "a2:7315", "b1:7315"]
    assert names({**environment, "SLURM_HET_SIZE": "x"}) == ["b1:7315"]


@pytest.mark.usefixtures("slurm")
def test_the_running_tasks_of_an_array_are_asked_for_again_and_have_no_ranks() -> None:
    environment = {"SLURM_JOB_NODELIST": "c1", "SLURM_ARRAY_JOB_ID": "17"}
    assert names(environment) == ["c1:7315", "c4:7315", "c5:7315"]
    source = from_slurm("", environment)
    assert (source.ordered, source.again) == (False, True)
    with pytest.raises(UsageError, match="--peers slurm: squeue ended with exit code 1") as caught:
        names({"SLURM_ARRAY_JOB_ID": "18"})
    assert caught.value.exit_code is ExitCode.TEMPORARY


def test_outside_of_a_job_or_without_slurm_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="this is not a Slurm job: start the node by sbatch"):
        names({})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"scontrol cannot run: no such file.*; it comes with") as caught:
        names({"SLURM_JOB_NODELIST": "c1"})
    assert caught.value.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize("argument", ["x", "0", "70000", "7" * 5000, "-1", "\u0667"])
def test_what_is_not_a_port_is_refused(argument: str) -> None:
    with pytest.raises(UsageError, match="is not a port within 1 to 65535"):
        from_slurm(argument, {})
