"""`p2psgd checkpoint` as a command, on a state directory with real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import p2psgd.cli.app
from p2psgd.base.errors import ExitCode
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.event_log import EVENTS_NAME
from p2psgd.storage.files import FOLDER
from tests.storage.states import SPEC, checkpoint

Run = Callable[..., tuple[int, str, str]]
STATE = checkpoint(updates=5)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of a command."""

    def one(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["p2psgd", "checkpoint", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            p2psgd.cli.app.main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return one


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with checkpoints 1 and 2, of which the second is damaged; it is the default one."""
    monkeypatch.setenv("P2PSGD_STATE", str(tmp_path))
    store = CheckpointStore(tmp_path / FOLDER)
    store.write(STATE)
    store.write(checkpoint(updates=7, trainer=False))
    path = store.path(2)
    path.write_bytes(path.read_bytes()[:-1])
    return tmp_path


def test_the_list_says_which_are_whole(run: Run, state: Path) -> None:
    code, out, _ = run("list", "--state", state)
    assert code == ExitCode.OK
    title, first, second = out.splitlines()
    assert title.split() == ["number", "written", "updates", "size"]
    assert first.split()[0] == "1"
    assert first.split()[3] == "10"
    assert first.endswith(" kB  whole")
    assert second.split()[0] == "2"
    assert "  damaged: it has " in second
    assert run("list")[1] == out


def test_the_list_is_there_for_machines(run: Run, state: Path) -> None:
    code, out, _ = run("list", "--json")
    assert code == ExitCode.OK
    first, second = json.loads(out)
    assert (first["number"], first["unit"], first["updates"], first["fault"]) == (1, "update", 10, None)
    assert first["file"] == str(CheckpointStore(state / FOLDER).path(1))
    assert first["bytes"] == Path(first["file"]).stat().st_size
    assert second["fault"].startswith("it has ")


def test_an_export_is_described_for_machines(run: Run, state: Path) -> None:
    code, out, _ = run("export", state / "weights.npz", "--json")
    assert code == ExitCode.OK
    file, digest = str(state / "weights.npz"), f"{STATE.digest:016x}"
    described = {"file": file, "weights": 1021, "digest": digest, "buffers": 0, "steps": None}
    assert json.loads(out) == described


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_the_weights_are_exported_for_anybody(run: Run, state: Path, suffix: str) -> None:
    file = state / f"weights.{suffix}"
    code, out, _ = run("export", file, "--state", state)
    written = f"1,021 weights with digest {STATE.digest:016x} written to {file}"
    assert code == ExitCode.OK
    assert out.startswith(f"{written}, without what the script kept: the trainer's state in the checkpoint")
    weights = load_file(file) if suffix == "safetensors" else dict(np.load(file))
    assert {name: array.shape for name, array in weights.items()} == dict(SPEC.tensors)
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    assert np.array_equal(weights["hidden.weight"].reshape(-1), STATE.coordinates[:1000] * 2.0**-20)
    assert weights["scale"] == STATE.coordinates[1020] * 2.0**-20


def test_what_cannot_be_exported_is_a_sentence(run: Run, state: Path, tmp_path: Path) -> None:
    assert run("export", tmp_path / "a.txt")[2].endswith(
        "a.txt ends in neither .safetensors nor .npz: its name says what to write\n"
    )
    assert run("export", tmp_path / "a.npz", "--number", 7)[2] == (
        f"p2psgd: there is no checkpoint 7 in {state / FOLDER}; there are: 1 and 2\n"
    )
    code, _, err = run("export", tmp_path / "a.npz", "--number", 2)
    assert (code, err.startswith("p2psgd: checkpoint 2 cannot be used: it has ")) == (ExitCode.DATA, True)
    absent = tmp_path / "absent" / "a.npz"
    assert run("export", absent)[2] == (
        f"p2psgd: the weights cannot be written to {absent}: no such file or directory;"
        " make the directory first\n"
    )
    assert not list(tmp_path.glob("*a.npz*"))


@pytest.mark.parametrize("command", [("list",), ("export", "a.npz")])
def test_without_a_checkpoint_there_is_a_sentence(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    code, _, err = run(*command, "--state", tmp_path)
    assert code == ExitCode.DATA
    assert err == (
        f"p2psgd: there is no checkpoint in {tmp_path / FOLDER}: name a node's state directory with --state\n"
    )


def test_of_a_node_that_has_not_written_one_yet_that_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / EVENTS_NAME).touch()
    code, _, err = run("list", "--state", tmp_path)
    assert code == ExitCode.DATA
    assert f"there is no checkpoint in {tmp_path / FOLDER}: that node has not written one yet" in err
