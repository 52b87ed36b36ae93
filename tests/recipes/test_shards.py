"""A folder of .npz files, read whole."""

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.datasets import load_folder


def save(folder: Path, name: str, start: int, count: int, part: str = "train", **changes: Any) -> Path:
    """A shard whose sample i has the values (i, i) and the label i % 3."""
    numbers = np.arange(start, start + count)
    values = np.stack([numbers, numbers], axis=1).astype(np.float32)
    arrays = {f"x_{part}": values, f"y_{part}": numbers % 3, **changes}
    path = folder / f"{name}.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_folder(folder)
    assert caught.value.exit_code is ExitCode.DATA
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_samples_are_numbered_through_all_shards_in_the_order_of_names(tmp_path: Path) -> None:
    save(tmp_path, "b", 5, 3)
    save(tmp_path, "a", 0, 5, x_test=np.full((2, 2), 7, np.uint8), y_test=np.array([1, 2], np.uint8))
    save(tmp_path, "c", 8, 4, x_train=np.arange(8, 12, dtype=">f8").repeat(2).reshape(4, 2))
    train, test = load_folder(tmp_path)
    assert train.labels.tolist() == [number % 3 for number in range(12)]
    rows = np.array([11, 0, 7, 8, 4, 5, 0])
    batch = np.empty((7, 2), np.float32)
    train.fill(rows, batch)
    assert batch.tolist() == [[row, row] for row in rows]
    test.fill(np.array([0]), batch[:1])
    assert batch[0].tolist() == [7, 7]
    assert (train.inputs, test.labels.tolist()) == (2, [1, 2])


def test_fortran_order_is_understood(tmp_path: Path) -> None:
    save(tmp_path, "a", 0, 3, x_train=np.asfortranarray([[1, 2], [3, 4], [5, 6]], np.float32))
    save(tmp_path, "t", 0, 3, "test")
    train, _ = load_folder(tmp_path)
    batch = np.empty((2, 2), np.float32)
    train.fill(np.array([2, 1]), batch)
    assert batch.tolist() == [[5, 6], [3, 4]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_refused(tmp_path: Path, value: float) -> None:
    save(tmp_path, "a", 0, 5)
    values = np.ones((4, 2))
    values[3, 1] = value
    path = save(tmp_path, "b", 5, 4, x_train=values)
    save(tmp_path, "t", 0, 5, "test")
    assert f"{path}: x_train[3, 1] is {value}; every value must be a finite float32" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": None}, r"b\.npz: it has x_train but lacks y_train"),
        ({"x_train": None}, r"b\.npz: it has y_train but lacks x_train"),
        ({"x_train": None, "y_train": None, "z": 1}, r"b\.npz: it lacks x_train and y_train, .+; it has z"),
        ({"x_train": np.ones((3, 2))}, r"b\.npz: x_train has 3 samples but y_train has 4 labels"),
        (
            {"x_train": np.ones((4, 3))},
            "x_train has not the same number of values .+: 2 in a.npz, 3 in b.npz",
        ),
        ({"x_train": np.ones(4)}, r"b\.npz: x_train has 1 dimensions"),
        ({"y_train": np.array([0, 1, 2, -3])}, r"b\.npz: y_train\[3\] is -3"),
        ({"y_train": np.ones(4)}, r"b\.npz: y_train holds float64; it must hold whole numbers"),
        (
            {"x_train": np.full((4, 2), None)},
            r"b\.npz: it is damaged, or no .npz file of plain arrays: Object arrays",
        ),
        ({"x_train": np.ones((0, 2)), "y_train": np.ones(0, int)}, r"b\.npz: x_train is empty"),
    ],
)
def test_bad_shards_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    save(tmp_path, "a", 0, 5)
    save(tmp_path, "b", 5, 4, **changes)
    save(tmp_path, "t", 0, 5, "test")
    assert re.search(words, refusal(tmp_path))


def test_a_folder_needs_both_parts(tmp_path: Path) -> None:
    assert "the folder holds no .npz files" in refusal(tmp_path)
    save(tmp_path, "a", 0, 5)
    assert "no .npz file in the folder has x_test and y_test" in refusal(tmp_path)


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "t", 0, 5, "test")
    path = save(tmp_path, "a", 0, 500)
    sound = path.read_bytes()
    for length in range(0, len(sound), 97):
        path.write_bytes(sound[:length])
        assert str(path) in refusal(tmp_path)
    draw = np.random.default_rng(1)
    headers = [match.start() for match in re.finditer(rb"PK|\x93NUMPY", sound)]
    for _ in range(300):
        damaged = bytearray(sound)
        damaged[draw.choice(headers) + draw.integers(100) - len(sound)] ^= 1 << draw.integers(8)
        path.write_bytes(damaged)
        with contextlib.suppress(UsageError):  # or a bit that nobody reads
            load_folder(tmp_path)
