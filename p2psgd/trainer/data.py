"""Data sets by name or place: the two that ship with the package, a .npz file, a folder of them or
of speech, or shards that nodes share out among them, from a folder with a list of them or a URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2psgd.data.formats import Arrays
from p2psgd.data.shard_list import LIST_NAME, Shard
from p2psgd.data.shards import Shards
from p2psgd.data.store import is_url
from p2psgd.errors import ExitCode, UsageError
from p2psgd.trainer.array_file import load_array_file, make_samples
from p2psgd.trainer.recipe import BUILT_IN_DATA, Recipe
from p2psgd.trainer.refusal import bad_data, check_classes
from p2psgd.trainer.samples import ArraySamples, Samples, SamplesToCome
from p2psgd.trainer.shards import load_folder
from p2psgd.trainer.speech import STATES
from p2psgd.trainer.speech_folder import is_speech, load_speech, load_speech_folder

DATASETS = Path(__file__).parent / "datasets"


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with the same number of values each, labels 0 to classes - 1."""

    train: Samples
    test: Samples
    classes: int
    shards: Shards | None = None  # that `train` comes from, piece by piece


def load_data_of(recipe: Recipe) -> Dataset:
    """What a recipe trains on; UsageError if that cannot be had, or cannot be used in its mode."""
    if recipe.run.trains.ring and is_sharded(recipe.data):
        raise UsageError(
            f"recipe {recipe.name}: the shards of {recipe.data} are dealt out in async mode only: have every "
            'node copy them, p2psgd data fetch, and give that folder, or leave mode = "ring" out',
            ExitCode.CONFIGURATION,
        )
    return load_dataset(recipe.data)


def load_dataset(data: str) -> Dataset:
    """Load what a recipe's `data` names; raises UsageError (exit code 65) naming the file and array at
    fault."""
    if data == "speech-small":
        train, test = (load_speech([DATASETS / f"speech_small_{part}.npz"]) for part in ("train", "test"))
        return Dataset(train, test, STATES)
    if is_sharded(data):
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
    """Whether nodes share these data out shard by shard."""
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
    return Dataset(SamplesToCome(widths.pop()), parts[0].join(parts[1:]), largest + 1, train)


def samples_of(shard: Shard, arrays: Arrays, part: str) -> ArraySamples:
    """The training or test samples of a shard; UsageError if they will not do."""
    names = (f"x_{part}", f"y_{part}")
    for name in names:
        if name not in arrays:
            raise bad_data(Path(shard.name), f"it lacks {name}; it has {', '.join(arrays):.300}")
    return make_samples(Path(shard.name), part, *(arrays[name] for name in names))
