"""A .npz file in memory: what is accepted and what is refused."""

import contextlib
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.datasets import load_array_file


def arrays(**changes: Any) -> dict[str, Any]:
    """Six training and three test samples of two values, three classes; None leaves an array out."""
    sound = {
        "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, 2), np.float32),
        "y_test": np.array([2, 1, 0]),
    }
    return {name: array for name, array in {**sound, **changes}.items() if array is not None}


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_array_file(path)
    assert caught.value.exit_code is ExitCode.DATA
    words = str(caught.value)
    assert words.startswith(f"data file {path}: ")
    assert "\n" not in words
    return words


@pytest.mark.parametrize("kind", ["f2", "f4", ">f8", "u1", "i8"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_real_numbers_become_float32(tmp_path: Path, kind: str, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(
        path,
        **arrays(x_train=np.arange(12).reshape(6, 2).astype(kind), y_train=np.array([0, 1, 2] * 2, "u1")),
    )
    train, test = load_array_file(path)
    batch = np.empty((2, 2), np.float32)
    train.fill(np.array([5, 1]), batch)
    assert batch.tolist() == [[10, 11], [2, 3]]
    assert (train.inputs, test.inputs) == (2, 2)
    assert train.labels.dtype == np.int32
    assert test.labels.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_test": None}, "it lacks x_test; it has x_train, y_train, y_test"),
        (
            {"x_train": np.ones(6, np.float32)},
            r"x_train has 1 dimensions, shape \(6,\); it must be \(samples, values\)",
        ),
        ({"x_train": np.ones((6, 2, 2))}, "x_train has 3 dimensions"),
        (
            {"y_test": np.ones((3, 1), int)},
            r"y_test has 2 dimensions, shape \(3, 1\); it must be \(samples,\)",
        ),
        ({"y_train": np.array([0, 1, 2, 0, 1])}, "x_train has 6 samples but y_train has 5 labels"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, r"y_train\[5\] is -1; a label must be 0 to 65535"),
        ({"y_train": np.array([0, 65_536, 2, 0, 1, 2])}, r"y_train\[1\] is 65536"),
        (
            {"y_train": np.array([0, 1, 2, 0, 1, 2**64 - 1], np.uint64)},
            r"y_train\[5\] is 18446744073709551615",
        ),
        ({"y_train": np.array([0.0, 1, 2, 0, 1, 2])}, "y_train holds float64; it must hold whole numbers"),
        ({"x_train": np.full((6, 2), "a")}, "x_train holds <U1; it must hold real numbers"),
        ({"x_train": np.ones((6, 2), np.complex64)}, "x_train holds complex64"),
        ({"x_train": np.ones((0, 2)), "y_train": np.ones(0, int)}, r"x_train is empty, shape \(0, 2\)"),
        (
            {"x_train": np.array([[1, np.nan]] * 6)},
            r"x_train\[0, 1\] is nan; every value must be a finite float32",
        ),
        ({"x_test": np.array([[1, 1], [-np.inf, np.inf], [1, 1]])}, r"x_test\[1, 0\] is -inf"),
        ({"x_train": np.full((6, 2), 1e300)}, r"x_train\[0, 0\] is inf"),
    ],
)
def test_bad_arrays_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays(**changes))
    assert re.search(words, refusal(path))


def test_values_whose_sum_overflows_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays(x_train=np.full((6, 2), 3e38, np.float32)))
    train, _ = load_array_file(path)
    assert train.inputs == 2


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays(x_train=np.array([[{}, 1]] * 6, object)))
    assert "no .npz file of plain arrays: Object arrays cannot be loaded" in refusal(path)


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    assert "it cannot be read: No such file or directory" in refusal(path)
    path.write_text("x_train,y_train\n1,2\n")
    assert "it is not a .npz file: save the arrays by name with numpy.savez" in refusal(path)
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").rename(path)
    assert "it is not a .npz file" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", b"")
    assert "it lacks y_train, x_test, y_test; it has x_train" in refusal(path)


def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays())
    sound = path.read_bytes()
    for length in range(0, len(sound), 7):
        path.write_bytes(sound[:length])
        assert refusal(path)
    draw = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(sound)
        damaged[draw.integers(len(sound))] ^= 1 << draw.integers(8)
        path.write_bytes(damaged)
        with contextlib.suppress(UsageError):  # or a bit that nobody reads
            load_array_file(path)


def test_a_header_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**9)}
    )
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, header.getvalue() if name == "x_train.npy" else content)
    assert "it is damaged" in refusal(path)
