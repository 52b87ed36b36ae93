"""One .npz file with x_train, y_train, x_test, y_test, read whole into memory and checked whole."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.data.unreadable import UNREADABLE
from p2psgd.trainer.net import Labels
from p2psgd.trainer.refusal import DATA_FILE, bad_data, check_finite, check_kind, check_pair
from p2psgd.trainer.samples import ArraySamples

NAMES = ("x_train", "y_train", "x_test", "y_test")


def load_arrays(path: Path, names: Sequence[str] | None, what: str = DATA_FILE) -> dict[str, NDArray[Any]]:
    """Read these arrays of a .npz file, or all; raises UsageError naming the file, which is `what`, and its
    fault.

    Pickled objects are never loaded.
    """
    with reading(path, what), path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise bad_data(path, "it is not a .npz file: save the arrays by name with numpy.savez", what)
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            names = archive.files if names is None else names
            missing = [name for name in names if name not in archive.files]
            if missing:
                has = ", ".join(archive.files) or "nothing"
                raise bad_data(path, f"it lacks {', '.join(missing)}; it has {has}", what)
            return {name: archive[name] for name in names}


@contextmanager
def reading(path: Path, what: str = DATA_FILE) -> Iterator[None]:
    """Turn whatever reading a file raises into a UsageError that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of odd headers before it refuses them
            yield
    except OSError as error:
        raise bad_data(path, f"it cannot be read: {error.strerror or error}", what) from error
    except UNREADABLE as error:
        raise bad_data(path, f"it is damaged, or no .npz file of plain arrays: {error}", what) from error


def load_array_file(path: Path) -> tuple[ArraySamples, ArraySamples]:
    """Training and test samples of a .npz file; x of any real type becomes float32, y int32."""
    arrays = load_arrays(path, NAMES)
    train = make_samples(path, "train", arrays["x_train"], arrays["y_train"])
    test = make_samples(path, "test", arrays["x_test"], arrays["y_test"])
    return train, test


def make_samples(
    path: Path, part: str, values: NDArray[np.generic], labels: NDArray[np.generic]
) -> ArraySamples:
    """Samples of x_`part` and y_`part`; UsageError that names the file and the array if they are none."""
    check_kind(path, f"x_{part}", values, dimensions=2)
    check_kind(path, f"y_{part}", labels, dimensions=1)
    check_pair(path, part, values, labels)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused
        narrow: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
    check_finite(path, f"x_{part}", narrow, np.arange(len(narrow)))
    classes: Labels = labels.astype(np.int32)
    return ArraySamples(narrow, classes)
