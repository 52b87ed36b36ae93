"""Data sets of recipes: bundled ones, .npz files, folders of shards, and speech."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.data.shard_list import LIST_NAME, UNREADABLE, Arrays, Shard
from p2psgd.data.shards import Shards
from p2psgd.data.store import is_url
from p2psgd.recipes.model import Labels
from p2psgd.recipes.recipe import BUILT_IN_DATA, Recipe

# ----------------------------------------------------------------------------
# What a trainer needs of a set of samples, and the plain case: arrays in memory.


class Samples(Protocol):
    """Labelled samples that hand out mini-batches as float32."""

    @property
    def inputs(self) -> int:
        """Values per sample."""

    @property
    def labels(self) -> Labels:
        """(n,) classes of all samples."""

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        """Write the samples with these indices into `batch` (len(rows), inputs)."""


class ArraySamples:
    """Samples held as one float32 array; the function that loads it has checked it."""

    def __init__(self, values: NDArray[np.float32], labels: Labels) -> None:
        self._values = values  # (n, inputs)
        self._labels = labels  # (n,)

    @property
    def inputs(self) -> int:
        return int(self._values.shape[1])

    @property
    def labels(self) -> Labels:
        return self._labels

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        # mode="clip": with an out array the default mode would gather into a temporary one first
        np.take(self._values, rows, axis=0, out=batch, mode="clip")

    def join(self, others: list[ArraySamples]) -> ArraySamples:
        """Return these samples and, after them, those of the others."""
        parts = [self, *others]
        return ArraySamples(
            np.concatenate([part._values for part in parts]), np.concatenate([part._labels for part in parts])
        )


# ----------------------------------------------------------------------------
# Words for data that cannot be used: one sentence that names the file and the array.


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


def check_finite(path: Path, name: str, values: NDArray[np.float32]) -> None:
    """Refuse NaN and infinity."""
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
            f"{name}[{row}, {column}] is {values[row, column]}; every value must be a finite float32",
        )


# ----------------------------------------------------------------------------
# One .npz file with x_train, y_train, x_test, y_test, read whole into memory and checked whole.


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
    """Load training and test samples of a .npz file; x of any real type becomes float32, y int32."""
    arrays = load_arrays(path, NAMES)
    train = make_samples(path, "train", arrays["x_train"], arrays["y_train"])
    test = make_samples(path, "test", arrays["x_test"], arrays["y_test"])
    return train, test


def make_samples(
    path: Path, part: str, values: NDArray[np.generic], labels: NDArray[np.generic]
) -> ArraySamples:
    """Make samples of x_`part` and y_`part`; UsageError that names the file and the array if they are
    none.
    """
    check_kind(path, f"x_{part}", values, dimensions=2)
    check_kind(path, f"y_{part}", labels, dimensions=1)
    check_pair(path, part, values, labels)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused
        narrow: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
    check_finite(path, f"x_{part}", narrow)
    classes: Labels = labels.astype(np.int32)
    return ArraySamples(narrow, classes)


# ----------------------------------------------------------------------------
# A folder of .npz files, read whole into memory in the order of their names. Every file holds x_train with
# y_train, x_test with y_test, or all four.


def load_folder(folder: Path) -> tuple[ArraySamples, ArraySamples]:
    """Load all .npz files of a folder; UsageError names the file and the array that cannot be used."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise bad_data(folder, "the folder holds no .npz files")
    parts: dict[str, dict[str, ArraySamples]] = {"train": {}, "test": {}}
    for path in paths:
        _add_file(path, parts)
    for part, files in parts.items():
        if not files:
            raise bad_data(folder, f"no .npz file in the folder has x_{part} and y_{part}")
        widths = {samples.inputs: name for name, samples in files.items()}
        if len(widths) > 1:
            said = ", ".join(f"{width} in {name}" for width, name in widths.items())
            raise bad_data(folder, f"x_{part} has not the same number of values a sample everywhere: {said}")
    train, test = (list(files.values()) for files in parts.values())
    return train[0].join(train[1:]), test[0].join(test[1:])


def _add_file(path: Path, parts: dict[str, dict[str, ArraySamples]]) -> None:
    arrays = load_arrays(path, None)
    for part, files in parts.items():
        names = (f"x_{part}", f"y_{part}")
        present = [name for name in names if name in arrays]
        if len(present) == 1:
            missing = names[present[0] == names[0]]
            raise bad_data(path, f"it has {present[0]} but lacks {missing}")
        if present:
            files[path.name] = make_samples(path, part, *(arrays[name] for name in names))
    if not any(path.name in files for files in parts.values()):
        has = ", ".join(arrays) or "nothing"
        raise bad_data(path, f"it lacks x_train and y_train, and x_test and y_test; it has {has}")


# ----------------------------------------------------------------------------
# Frames of speech as samples: each is a window of 17 frames of 20 log-mel values around the frame to
# classify.
#
# The windows overlap, so they are never stored: a table of frames and, for every frame, the bounds of its
# utterance give a mini-batch by one gather. That holds the small set in 14 MB instead of 245 MB. At the ends
# of an utterance the window repeats the first or last frame. The target is the state 3 x phone + third
# [Strom 2015, section 4.1: context window and phonetic states].


CONTEXT = 8  # frames on either side: 17 in all
BANKS = 20
PHONES = 68
STATES = 3 * PHONES


class SpeechSamples:
    """Windows over a table of normalised frames."""

    def __init__(
        self,
        mel: NDArray[np.uint8],
        phone: NDArray[np.uint8],
        third: NDArray[np.uint8],
        utterance_start: NDArray[np.int64],
    ) -> None:
        """mel (T, 20) with value = (mel - 128) / 32 standard deviations; phone, third (T,); starts (U +
        1,)."""
        self._frames = (mel.astype(np.float32) - np.float32(128)) / np.float32(32)
        self._labels = 3 * phone.astype(np.int32) + third
        lengths = np.diff(utterance_start)
        self._first = np.repeat(utterance_start[:-1], lengths)  # (T,) first frame of the utterance
        self._last = np.repeat(utterance_start[1:] - 1, lengths)  # (T,) last frame of it
        self._offsets = np.arange(-CONTEXT, CONTEXT + 1)

    @property
    def inputs(self) -> int:
        return len(self._offsets) * BANKS

    @property
    def labels(self) -> Labels:
        return self._labels

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        frames = rows[:, None] + self._offsets  # (n, 17)
        np.maximum(frames, self._first[rows, None], out=frames)
        np.minimum(frames, self._last[rows, None], out=frames)
        windows = batch.reshape(len(rows), len(self._offsets), BANKS)
        # mode="clip": with an out array the default mode would gather into a temporary one first
        np.take(self._frames, frames, axis=0, out=windows, mode="clip")


# ----------------------------------------------------------------------------
# A folder of speech: speech_train*.npz and speech_test*.npz, each with the arrays of SpeechSamples, joined
# in the order of their names.


ARRAYS: Final = ("mel", "phone", "third", "utterance_start")


def is_speech(folder: Path) -> bool:
    """Return whether it is a folder with training speech."""
    return folder.is_dir() and any(folder.glob("speech_train*.npz"))


def load_speech_folder(folder: Path) -> tuple[SpeechSamples, SpeechSamples]:
    """Load training and test samples; UsageError that names the file which will not do."""
    train, test = (sorted(folder.glob(f"speech_{part}*.npz")) for part in ("train", "test"))
    if not test:
        raise bad_data(folder, "it has speech_train*.npz but no speech_test*.npz")
    return load_speech(train), load_speech(test)


def load_speech(paths: Sequence[Path]) -> SpeechSamples:
    """Load the speech of these files, one after the other; UsageError as above."""
    files = [load_arrays(path, ARRAYS) for path in paths]
    for path, arrays in zip(paths, files, strict=True):
        _check(path, arrays)
    frames = np.cumsum([0, *(len(arrays["mel"]) for arrays in files)])
    starts = [
        before + arrays["utterance_start"][:-1] for before, arrays in zip(frames[:-1], files, strict=True)
    ]
    mel, phone, third = (np.concatenate([arrays[name] for arrays in files]) for name in ARRAYS[:3])
    return SpeechSamples(mel, phone, third, np.concatenate([*starts, frames[-1:]]))


def _check(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    mel, phone, third, starts = (arrays[name] for name in ARRAYS)
    if mel.dtype != np.uint8 or mel.ndim != 2 or mel.shape[1] != BANKS or not len(mel):
        raise bad_data(path, f"mel is {mel.dtype} {mel.shape}; it must be uint8 (frames, {BANKS})")
    for name, values, most in (("phone", phone, PHONES), ("third", third, 3)):
        if values.dtype != np.uint8 or values.shape != mel.shape[:1] or values.max() >= most:
            raise bad_data(path, f"{name} must be uint8 (frames,), as many as mel has, all below {most}")
    rising = starts.ndim == 1 and starts.dtype == np.int64 and bool((np.diff(starts) > 0).all())
    if not rising or len(starts) < 2 or starts[0] != 0 or starts[-1] != len(mel):
        raise bad_data(path, f"utterance_start must be int64 and rise from 0 to the {len(mel)} frames")


# ----------------------------------------------------------------------------
# Data sets by name or place: the two that ship with the package, a .npz file, a folder of them or
# of speech, or shards that nodes share out among them, from a folder with a list of them or a URL.


DATASETS = Path(__file__).parent / "dataset_files"


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with the same number of values each, labels 0 to classes - 1."""

    train: Samples
    test: Samples
    classes: int
    shards: Shards | None = None  # that `train` comes from, piece by piece


def load_data_of(recipe: Recipe) -> Dataset:
    """Load the data that a recipe trains on; UsageError if they cannot be had, or cannot be used in its
    mode.
    """
    trains = recipe.run.trains
    whole = trains.rounds or trains.closure
    if whole and is_url(recipe.data):
        raise UsageError(
            f"recipe {recipe.name}: the shards of {recipe.data} are dealt out in async mode only: copy them "
            f'to a folder on every node and give that folder, or leave mode = "{recipe.run.mode}" out',
            ExitCode.CONFIGURATION,
        )
    return load_dataset(recipe.data, dealt=not whole)


def load_dataset(data: str, *, dealt: bool = True) -> Dataset:
    """Load what a recipe's `data` names; raises UsageError (exit code 65) naming the file and array at
    fault. If not `dealt`, a folder of shards is one like any other.
    """
    if data == "speech-small":
        train, test = (load_speech([DATASETS / f"speech_small_{part}.npz"]) for part in ("train", "test"))
        return Dataset(train, test, STATES)
    if dealt and is_sharded(data):
        return open_streamed(data)
    path = DATASETS / "digits.npz" if data == "digits" else Path(data)
    if not path.exists():
        known = " and ".join(f'"{name}"' for name in BUILT_IN_DATA)
        raise bad_data(path, f"there is no such file or folder; the built-in data are {known}")
    if is_speech(path):
        return Dataset(*load_speech_folder(path), STATES)
    return _checked(path, *(load_folder(path) if path.is_dir() else load_array_file(path)))


def _checked(path: Path, train: Samples, test: Samples) -> Dataset:
    if train.inputs != test.inputs:
        raise bad_data(path, f"x_train has {train.inputs} values a sample but x_test has {test.inputs}")
    classes = int(train.labels.max()) + 1
    check_classes(path, test.labels, classes)
    return Dataset(train, test, classes)


def is_sharded(data: str) -> bool:
    """Return whether nodes share these data out shard by shard."""
    return is_url(data) or (Path(data) / LIST_NAME).is_file()


def open_streamed(data: str) -> Dataset:
    """Shards with x_train and y_train to be dealt out, and all with x_test and y_test, loaded now."""
    shards = Shards(data)
    train, test = shards.only("x_train"), shards.only("x_test")
    widths, largest = set(), 0
    for shard in train.list.shards:
        x, y = shard.arrays["x_train"], shard.arrays.get("y_train")
        if y is None or len(x.shape) != 2 or y.least is None or y.largest is None:
            raise bad_data(
                Path(shard.name),
                "it must have x_train (samples, values), y_train (samples,) of whole numbers",
            )
        widths.add(x.shape[1])
        largest = max(largest, y.largest)
    parts = [samples_of(shard, test.load(shard), "test") for shard in test.list.shards]
    widths |= {part.inputs for part in parts}
    if len(widths) > 1:
        said = ", ".join(map(str, sorted(widths)))
        raise bad_data(Path(data), f"its samples have not the same number of values everywhere, but {said}")
    for shard, part in zip(test.list.shards, parts, strict=True):
        check_classes(Path(shard.name), part.labels, largest + 1)
    to_come = ArraySamples(np.empty((0, widths.pop()), np.float32), np.empty(0, np.int32))
    return Dataset(to_come, parts[0].join(parts[1:]), largest + 1, train)


def samples_of(shard: Shard, arrays: Arrays, part: str) -> ArraySamples:
    """Return the training or test samples of a shard; UsageError if they will not do."""
    names = (f"x_{part}", f"y_{part}")
    for name in names:
        if name not in arrays:
            raise bad_data(Path(shard.name), f"it lacks {name}; it has {', '.join(arrays):.300}")
    return make_samples(Path(shard.name), part, *(arrays[name] for name in names))
