from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.cli.local.plan import Plan, Request, make_plan
from p2psgd.cli.weights_file import make_arrays, write_arrays
from p2psgd.net.address import Address
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import initial_weights
from p2psgd.recipes.recipe import RECIPES, Told, load_recipe


def plan(tmp_path: Path, nodes: int = 2, **changes: Any) -> Plan:
    values: dict[str, Any] = {"nodes": nodes, "recipe_name": "digits", "state": tmp_path / "state"}
    return make_plan(Request(**values | changes))


def test_the_first_node_alone_shows_itself(tmp_path: Path) -> None:
    shown = plan(tmp_path, 3, http=Address("127.0.0.1", 9400))
    assert [shown.http_options(index) for index in range(3)] == [["--http", "127.0.0.1:9400"], [], []]
    assert plan(tmp_path).http_options(0) == []


def test_the_built_in_trainer_gets_its_share(tmp_path: Path) -> None:
    words = shlex.split(plan(tmp_path, 4, steps=300).trainer_command(2))
    assert words == [
        sys.executable,
        "-m",
        "p2psgd",
        "train",
        "--recipe",
        "digits",
        "--rank",
        "2/4",
        "--steps",
        "300",
    ]


def test_a_recipe_file_is_named_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine with spaces.toml").write_text((RECIPES / "digits.toml").read_text())
    words = shlex.split(plan(tmp_path, recipe_name="mine with spaces.toml", seconds=1.5).trainer_command(0))
    assert str(tmp_path / "mine with spaces.toml") in words
    assert words[words.index("--seconds") + 1] == "1.5"
    assert float(words[words.index("--started") + 1]) > 0  # a restarted trainer keeps the deadline


def test_a_trainer_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    own = plan(tmp_path, trainer="python my_trainer.py --rate '0.1 * 2'", recipe_name="no such recipe")
    assert own.trainer_command(1) == "python my_trainer.py --rate '0.1 * 2'"
    assert own.recipe is None


def test_two_outputs_in_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path, 2, report=tmp_path / "x.npz", weights=tmp_path / "again" / "x.npz")
    assert str(refusal.value) == (
        f"--report and --weights both name {tmp_path / 'again' / 'x.npz'}: give each a file of its own"
    )
    assert not (tmp_path / "state").exists()


def test_a_given_state_directory_is_kept_and_a_temporary_one_is_not(tmp_path: Path) -> None:
    given, temporary = plan(tmp_path), plan(tmp_path, state=None)
    try:
        assert (given.keep_state, given.state) == (True, tmp_path / "state")
        assert (temporary.keep_state, temporary.state.is_dir()) == (False, True)
    finally:
        temporary.state.rmdir()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seconds": math.nan}, "--seconds nan is no time to train for: give a number above 0"),
        ({"steps": 5, "trainer": "own"}, "--steps and --seconds are for the built-in trainer"),
        ({"trainer": "  "}, "the trainer's command is empty: give a command line, or leave --trainer out"),
        ({"recipe_name": "no-such"}, "there is no recipe 'no-such'"),
    ],
)
def test_refused_before_anything_exists(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path, **changes)
    assert sentence in str(refusal.value)
    assert not (tmp_path / "state").exists()


def test_an_unreadable_data_file_is_named(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text((RECIPES / "digits.toml").read_text().replace('data = "digits"', 'data = "absent.npz"'))
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path, recipe_name=str(recipe))
    assert "absent.npz" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.DATA


def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path, report=tmp_path / "absent" / "report.json")
    assert str(refusal.value).endswith("no such file or directory; make the directory first")
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path, report=tmp_path)
    assert str(refusal.value).endswith("it is a directory; give a file name")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_cannot_be_written_are_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights cannot be written to .*; make the directory first"):
        plan(tmp_path, weights=tmp_path / "absent" / "weights.npz")
    with pytest.raises(UsageError, match=r"weights\.pt ends in neither \.safetensors nor \.npz"):
        plan(tmp_path, weights=tmp_path / "weights.pt")


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(UsageError) as refusal:
        plan(tmp_path)
    assert "file exists; choose another place" in str(refusal.value)


def test_all_trainers_start_from_the_weights_given(tmp_path: Path) -> None:
    recipe = load_recipe("digits")
    shape = net_shape(recipe, load_data_of(recipe))
    flat = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, 9).values()])
    given = tmp_path / "weights.npz"
    write_arrays(given, make_arrays(flat, tensors=tuple(shape.tensors)))
    run = plan(tmp_path, initial=given)
    assert [shlex.split(run.trainer_command(share))[-2:] for share in (0, 1)] == [
        ["--initial", str(given)]
    ] * 2
    mine = tmp_path / "mine.toml"
    mine.write_text((RECIPES / "digits.toml").read_text().replace("hidden = [64]", "hidden = [32]"))
    with pytest.raises(UsageError, match=r"layer1\.weight is float32 \(64, 64\), and the recipe's net has"):
        plan(tmp_path, recipe_name=str(mine), initial=given)


def test_the_trainers_get_the_mode(tmp_path: Path) -> None:
    ring = plan(tmp_path, 4, told=Told("ring", "dense"))
    words = shlex.split(ring.trainer_command(1))
    assert words[-4:] == ["--mode", "ring", "--payload", "dense"]
    assert shlex.split(plan(tmp_path, 2, device="cpu").trainer_command(1))[-2:] == ["--device", "cpu"]
    assert ring.recipe is not None
    assert ring.recipe.run.trains.word == "ring-dense"


@pytest.mark.parametrize(
    ("nodes", "options", "words"),
    [
        (1, {"told": Told("ring")}, "a ring needs two nodes, and this run has one: give -n 2 or more"),
        (2, {"told": Told(payload="dense")}, '--payload dense is for a ring, and the mode is "async": give'),
        (
            2,
            {"told": Told("ring"), "trainer": "own"},
            "are for the built-in trainer: leave them out",
        ),
        (
            2,
            {"device": "cpu", "trainer": "own"},
            "--device and --initial are for the built-in trainer",
        ),
        (2, {"device": "cpu:0"}, "device 'cpu:0' is not known: give auto, cpu, cuda or cuda:N"),
    ],
)
def test_what_a_ring_cannot_be_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(words)):
        plan(tmp_path, nodes, **options)
    assert not (tmp_path / "state").exists()
