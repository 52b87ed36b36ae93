"""The command line in this process: what options are refused and what a daemon's answers become."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

import p2psgd.cli.app
import p2psgd.ipc.client
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.recipe import built_in_recipes, load_recipe
from tests import DEADLINE_S
from tests.observe.compressions import description
from tests.observe.statuses import fields


class Client:
    """A daemon's answers, put in the place of ControlClient."""

    answers: dict[str, Any]

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, op: str) -> dict[str, Any]:
        if op not in self.answers:
            raise UsageError(f"malformed request: '{op}'")
        return {op: self.answers[op]}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["p2psgd", *arguments])
    with pytest.raises(SystemExit) as end:
        p2psgd.cli.app.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the daemon answers, to be filled in."""
    answers: dict[str, Any] = {}
    monkeypatch.setattr(Client, "answers", answers, raising=False)
    monkeypatch.setattr(p2psgd.ipc.client, "ControlClient", Client)
    return answers


def test_json_has_the_whole_compression(
    daemon: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon |= {"status": fields(compression={"total": {}}), "compression": description().model_dump()}
    assert run(monkeypatch, "status", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["compression"] == description().model_dump()


def test_json_before_a_run_has_no_compression(
    daemon: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon |= {"status": fields(compression=None), "compression": {}}
    assert run(monkeypatch, "status", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["compression"] is None
    assert run(monkeypatch, "status", "--compression") == ExitCode.OK
    assert capsys.readouterr().out == "this node has made no update yet\n"


def test_a_daemon_of_another_version_still_has_a_status_for_machines(
    daemon: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon |= {"status": fields(compression={"total": {"updates": 3}}, version="0.0.7")}
    assert run(monkeypatch, "status", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["compression"] == {"total": {"updates": 3}}
    assert run(monkeypatch, "status", "--compression") == ExitCode.CONFIGURATION
    words = capsys.readouterr().err
    assert words.startswith("p2psgd: the daemon is of another version (0.0.7, this is ")
    assert words.count("\n") == 1


def test_a_reader_who_leaves_ends_any_command_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = os.pipe()
    os.close(source)
    with open(target, "w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert run(monkeypatch, "recipe", "digits") == ExitCode.OK


def test_a_word_that_an_option_does_not_know_is_refused_with_those_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", "--mode", "foo") == ExitCode.USAGE
    words = "Invalid value for '--mode': 'foo' is not one of 'async', 'owners', 'ring', 'closure'"
    assert capsys.readouterr().err == f"p2psgd: {words} (see --help)\n"


def test_a_script_given_as_to_python_is_refused_with_the_option_that_takes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "local", "-n", "3", "python", "train.py") == ExitCode.USAGE
    assert '--trainer "python train.py"' in capsys.readouterr().err


def test_a_built_in_recipe_is_printed_as_a_file_that_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "recipe") == ExitCode.OK
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == built_in_recipes()
    assert run(monkeypatch, "recipe", "speech") == ExitCode.OK
    mine = tmp_path / "mine.toml"
    mine.write_text(capsys.readouterr().out)
    assert load_recipe(mine) == load_recipe("speech")
    assert run(monkeypatch, "recipe", "speach") == ExitCode.CONFIGURATION
    words = "p2psgd: 'speach' is no built-in recipe: there are digits, speech\n"
    assert capsys.readouterr().err == words


def test_recipes_are_there_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "recipe", "--json") == ExitCode.OK
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == built_in_recipes()
    assert run(monkeypatch, "recipe", "digits", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["name"] == "digits"


def test_a_device_that_no_machine_has_is_wrong_where_it_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--device 'tpu' is not known: give auto, cpu, cuda or cuda:N\n"
    assert run(monkeypatch, "train", "--device", "tpu") == ExitCode.USAGE
    assert capsys.readouterr().err == f"p2psgd: {words}"
    monkeypatch.setenv("P2PSGD_DEVICE", "tpu")
    assert run(monkeypatch, "local") == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"p2psgd: P2PSGD_DEVICE=tpu in the environment: {words}"


def test_a_group_that_this_machine_does_not_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--peers", str(tmp_path / "hosts.txt"), "--control-group", "nobody-has-this")
    assert run(monkeypatch, "node", *options) == 78
    words = "--control-group: this machine has no group 'nobody-has-this'; groupadd --system makes one"
    assert words in capsys.readouterr().err


def test_a_bug_ends_a_command_with_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def buggy(_: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(p2psgd.ipc.client, "ControlClient", buggy)
    assert run(monkeypatch, "status") == ExitCode.INTERNAL
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_that_does_not_see_to_it_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("p2psgd.recipes.recipe.built_in_recipes", interrupted)
    assert run(monkeypatch, "recipe") == ExitCode.FAILED
    assert capsys.readouterr().err == "p2psgd: interrupted\n"


def test_exposed_without_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "node", "--peers", "hosts.txt", "--http-exposed") == ExitCode.USAGE
    assert "--http-exposed is for the address of --http: give both or neither" in capsys.readouterr().err


def test_an_end_with_no_trainer_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "node", "--peers", "hosts.txt", "--end-with-trainer") == ExitCode.USAGE
    words = "--end-with-trainer is for the command of --trainer: give both or neither"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "name"), [("ascii", "n\u00e9"), ("utf-8", "n\udcff")])
def test_what_standard_output_cannot_hold_is_printed_escaped(
    tmp_path: Path, encoding: str, name: str
) -> None:
    (tmp_path / "hosts.txt").write_text("127.0.0.1\n")
    shown = [sys.executable, "-m", "p2psgd", "config", "show", "--name", name]
    done = subprocess.run(
        [*shown, "--peers", str(tmp_path / "hosts.txt"), "--listen", "127.0.0.1:7315"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert ascii(name)[1:-1].encode() in done.stdout


def test_weights_are_not_trained_for_a_place_where_they_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "folder.npz").mkdir()
    for name, why in (
        ("none/weights.npz", "no such file or directory; make the directory first"),
        ("folder.npz", "it is a directory; give a file name"),
    ):
        options = ("--recipe", "digits", "--weights", str(tmp_path / name))
        assert run(monkeypatch, "local", *options) == ExitCode.PERMISSION
        assert capsys.readouterr().err.endswith(f"cannot be written to {tmp_path / name}: {why}\n")


def test_ctrl_c_in_a_command_is_one_word_and_no_bug(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    os.mkfifo(recipe)
    command = [sys.executable, "-m", "p2psgd", "train", "--recipe", str(recipe)]
    with (
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process,
        recipe.open("wb"),  # which waits until the command reads it
    ):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (ExitCode.FAILED, b"p2psgd: interrupted\n")
    assert os.listdir(tmp_path) == ["recipe.toml"]
