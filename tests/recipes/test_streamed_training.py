"""The built-in trainer on shards in a folder, beside a real daemon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.data.index import make_list
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.main import train
from p2psgd.recipes.recipe import Recipe, load_recipe
from tests.ipc.daemons import Daemon

DIGITS = Path("p2psgd/recipes/dataset_files/digits.npz")
SAMPLES = 1437


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    with np.load(DIGITS) as digits:
        for part, count in (("train", 5), ("test", 2)):
            pieces = [np.array_split(digits[f"{name}_{part}"], count) for name in "xy"]
            for number, (x, y) in enumerate(zip(*pieces, strict=True)):
                np.savez(folder / f"{part}-{number}.npz", **{f"x_{part}": x, f"y_{part}": y})
    make_list(str(folder))
    return folder


@pytest.fixture
def recipe(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("P2PSGD_CONTROL", str(daemon.path))
    path = folder.parent / "recipe.toml"
    path.write_text(
        'name = "streamed"\ndata = "./digits"\nhidden = [24]\nbatch = 64\nepochs = 2\nlearning_rate = 0.1\n'
        "warm_start = 0.5\ntau = 0.03\n"
    )
    return load_recipe(path)


def test_an_epoch_ends_when_all_shards_were_used_and_the_rate_follows(daemon: Daemon, recipe: Recipe) -> None:
    daemon.host.rank_value = None  # a node needs none
    daemon.host.steps[7] = 100  # of share 0: the warm start is over
    train(recipe)
    status = daemon.trainer_status()
    assert status["samples"] == 2 * SAMPLES
    assert status["steps"] == 2 * 5 * 5, "of 288 samples, five for each shard"
    assert status["epoch"] == pytest.approx(2, abs=0.1)
    assert status["test_accuracy"] > 0.25, "after 50 mini-batches"
    shards = 5
    assert daemon.host.coordinates[-2 * shards :].tolist() == [0] * shards + [2] * shards
    steps = [update.magnitude for update in daemon.host.updates if update.magnitude > 10]
    assert steps[0] == 2 * steps[-1], "the rate was halved after one epoch"


@pytest.mark.parametrize("length", [{"steps": 7}, {"seconds": 0.5}])
def test_another_length_goes_through_the_shards_as_often_as_it_takes(
    daemon: Daemon, recipe: Recipe, length: dict[str, int]
) -> None:
    train(recipe, rank=(0, 2), **length)  # type: ignore[arg-type]
    status = daemon.trainer_status()
    assert status["steps"] == length.get("steps", status["steps"]) > 0
    assert status["finished"]
    held, used = daemon.call(lambda: daemon.host.coordinates[-10:].reshape(2, 5).copy())
    assert not held.any()
    assert used.sum() == status["steps"] // 5


def test_a_trainer_without_the_first_share_waits_for_the_warm_start(
    daemon: Daemon, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("p2psgd.recipes.training.QUIET_S", 0.3)
    train(recipe, rank=(1, 2), steps=2)
    assert "0.3 s without a step of rank 0: the warm start is cut short" in capsys.readouterr().err
    assert daemon.trainer_status()["steps"] == 2


def test_what_does_not_fit_is_refused(folder: Path, recipe: Recipe) -> None:
    def refusal(changed: Recipe) -> str:
        with pytest.raises(UsageError) as caught:
            load_data_of(changed)
        assert caught.value.exit_code in {ExitCode.DATA, ExitCode.CONFIGURATION, ExitCode.USAGE}
        return str(caught.value)

    ring = recipe.model_copy(update={"run": recipe.run.model_copy(update={"mode": "ring"})})
    assert load_data_of(ring).shards is None, "in a ring a folder is read whole"
    remote = ring.model_copy(update={"data": "s3://bucket/train"})
    assert "are dealt out in async mode only: copy them to a folder on every node" in refusal(remote)
    np.savez(folder / "train-9.npz", x_train=np.zeros((3, 9)), y_train=np.zeros(3, int))
    make_list(str(folder))
    assert "its samples have not the same number of values everywhere, but 9, 64" in refusal(recipe)
    np.savez(folder / "train-9.npz", x_train=np.zeros((3, 64)), y_train=np.zeros(3))
    make_list(str(folder))
    assert "data file train-9.npz: it must have x_train" in refusal(recipe)
    for path in folder.glob("test-*"):
        path.unlink()
    make_list(str(folder))
    assert refusal(recipe).startswith(f"no shard of {folder} has an array x_test; there are x_train, y_train")
