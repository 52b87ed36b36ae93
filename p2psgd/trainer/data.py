"""Data sets by name or path: the two that ship with the package, a .npz file, or a folder of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2psgd.trainer.array_file import load_array_file, load_arrays
from p2psgd.trainer.recipe import BUILT_IN_DATA
from p2psgd.trainer.refusal import bad_data, check_classes
from p2psgd.trainer.samples import Samples
from p2psgd.trainer.shards import load_folder
from p2psgd.trainer.speech import STATES, SpeechSamples

DATASETS = Path(__file__).parent / "datasets"
SPEECH_ARRAYS = ("mel", "phone", "third", "utterance_start")


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with the same number of values each, labels 0 to classes - 1."""

    train: Samples
    test: Samples
    classes: int


def load_dataset(data: str) -> Dataset:
    """Load what a recipe's `data` names; raises UsageError (exit code 65) naming the file and array at
    fault."""
    if data == "speech-small":
        train, test = (_speech(DATASETS / f"speech_small_{part}.npz") for part in ("train", "test"))
        return Dataset(train, test, STATES)
    path = DATASETS / "digits.npz" if data == "digits" else Path(data)
    if not path.exists():
        known = " and ".join(f'"{name}"' for name in BUILT_IN_DATA)
        raise bad_data(path, f"there is no such file or folder; the built-in data are {known}")
    return _checked(path, *(load_folder(path) if path.is_dir() else load_array_file(path)))


def _speech(path: Path) -> SpeechSamples:
    arrays = load_arrays(path, SPEECH_ARRAYS)
    return SpeechSamples(arrays["mel"], arrays["phone"], arrays["third"], arrays["utterance_start"])


def _checked(path: Path, train: Samples, test: Samples) -> Dataset:
    if train.inputs != test.inputs:
        raise bad_data(path, f"x_train has {train.inputs} values a sample but x_test has {test.inputs}")
    classes = int(train.labels.max()) + 1
    check_classes(path, test.labels, classes)
    return Dataset(train, test, classes)
