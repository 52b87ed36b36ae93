"""Data by name or path."""

from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.datasets import DATASETS, load_dataset


def test_the_digits_ship_with_the_package() -> None:
    digits = load_dataset("digits")
    assert (digits.train.inputs, digits.classes) == (64, 10)
    assert (len(digits.train.labels), len(digits.test.labels)) == (1437, 360)


def test_a_file_and_a_folder_load_by_path(tmp_path: Path) -> None:
    with np.load(DATASETS / "digits.npz") as arrays:
        np.savez(tmp_path / "digits.npz", **arrays)
    for path in (tmp_path, tmp_path / "digits.npz"):
        data = load_dataset(str(path))
        assert data.classes == 10
        assert np.array_equal(data.train.labels, load_dataset("digits").train.labels)


def test_a_path_to_nothing_is_refused_with_the_built_in_names(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match='no such file or folder; the built-in data are "speech-small" and "digits"'
    ) as caught:
        load_dataset(str(tmp_path / "none.npz"))
    assert caught.value.exit_code is ExitCode.DATA


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x_train=np.ones((2, 3)), y_train=[0, 1], x_test=np.ones((2, 4)), y_test=[0, 1])
    with pytest.raises(UsageError, match="x_train has 3 values a sample but x_test has 4"):
        load_dataset(str(path))
    np.savez(path, x_train=np.ones((2, 3)), y_train=[0, 1], x_test=np.ones((2, 3)), y_test=[0, 2])
    with pytest.raises(UsageError, match=r"y_test\[1\] is 2, but y_train only has labels from 0 to 1"):
        load_dataset(str(path))
