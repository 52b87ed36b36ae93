"""Words for data that cannot be used: one sentence that names the file and the array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import ExitCode, UsageError

DATA_FILE = "data file"
CLASSES_MAX = 65_536  # as many as a layer may be wide


def bad_data(path: Path, words: str, what: str = DATA_FILE) -> UsageError:
    """Make the error for something wrong with one data file."""
    return UsageError(f"{what} {path}: {words}", ExitCode.DATA)


def check_kind(path: Path, name: str, array: NDArray[np.generic], *, dimensions: int) -> None:
    """Refuse an array that is not numbers in this many dimensions."""
    if array.ndim != dimensions:
        wanted = "(samples, values)" if dimensions == 2 else "(samples,)"
        raise bad_data(path, f"{name} has {array.ndim} dimensions, shape {array.shape}; it must be {wanted}")
    if array.dtype.kind not in "fiu" or (dimensions == 1 and array.dtype.kind == "f"):
        wanted = "real numbers" if dimensions == 2 else "whole numbers"
        raise bad_data(path, f"{name} holds {array.dtype}; it must hold {wanted}")
    if 0 in array.shape:
        raise bad_data(path, f"{name} is empty, shape {array.shape}")


def check_pair(path: Path, part: str, values: NDArray[np.generic], labels: NDArray[np.generic]) -> None:
    """Refuse x_`part` and y_`part` that do not belong together, and labels that are no classes."""
    if len(values) != len(labels):
        raise bad_data(path, f"x_{part} has {len(values)} samples but y_{part} has {len(labels)} labels")
    for label in (labels.min(), labels.max()):
        if not 0 <= label < CLASSES_MAX:
            where = int(np.flatnonzero(labels == label)[0])
            raise bad_data(path, f"y_{part}[{where}] is {label}; a label must be 0 to {CLASSES_MAX - 1}")


def check_classes(path: Path, labels: NDArray[np.generic], classes: int) -> None:
    """Refuse a test label that no training sample has shown the net a place for."""
    if labels.max() >= classes:
        where = int(labels.argmax())
        raise bad_data(
            path,
            f"y_test[{where}] is {labels[where]}, but y_train only has labels from 0 to {classes - 1}",
        )


def check_finite(path: Path, name: str, values: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
    """Refuse NaN and infinity; `rows` are the values' own row numbers in the file's array."""
    # the sum is finite only if every value is, or if huge ones cancel or overflow: then look closely
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if np.isfinite(total):
        return
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        row, column = wrong[0]
        raise bad_data(
            path,
            f"{name}[{rows[row]}, {column}] is {values[row, column]}; every value must be a finite float32",
        )
