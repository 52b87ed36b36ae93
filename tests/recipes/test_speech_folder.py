"""A folder of speech as data of a recipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import UsageError
from p2psgd.recipes.datasets import BANKS, STATES, load_dataset


def write(path: Path, frames: int, value: int, **changes: Any) -> None:
    arrays: dict[str, Any] = {
        "mel": np.full((frames, BANKS), value, np.uint8),
        "phone": np.full(frames, 5, np.uint8),
        "third": np.full(frames, 2, np.uint8),
        "utterance_start": np.array([0, 2, frames], np.int64),
    }
    arrays |= changes
    np.savez(path, **arrays)


def test_its_files_are_one_set_and_no_window_reaches_from_one_into_the_next(tmp_path: Path) -> None:
    write(tmp_path / "speech_train_0.npz", 10, 128)
    write(tmp_path / "speech_train_1.npz", 12, 160)
    write(tmp_path / "speech_test_voices.npz", 4, 128)
    data = load_dataset(str(tmp_path))
    assert (len(data.train.labels), len(data.test.labels), data.classes) == (22, 4, STATES)
    assert set(data.train.labels) == {3 * 5 + 2}
    batch = np.empty((2, data.train.inputs), np.float32)
    data.train.fill(np.array([9, 10]), batch)  # the last frame of the first file, the first of the second
    assert (batch[0] == 0).all()
    assert (batch[1] == 1).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mel": np.zeros((10, 21), np.uint8)}, r"mel is uint8 \(10, 21\); it must be uint8 \(frames, 20\)"),
        ({"phone": np.full(10, 68, np.uint8)}, r"phone must be uint8 .*, all below 68"),
        ({"third": np.zeros(9, np.uint8)}, r"third must be uint8 \(frames,\), as many as mel has"),
        ({"utterance_start": np.array([0, 5, 11])}, "must be int64 and rise from 0 to the 10 frames"),
    ],
)
def test_a_file_that_is_no_speech_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write(tmp_path / "speech_train.npz", 10, 128)
    with pytest.raises(UsageError, match="but no speech_test"):
        load_dataset(str(tmp_path))
    write(tmp_path / "speech_test.npz", 10, 128, **changes)
    with pytest.raises(UsageError, match=rf"speech_test\.npz: .*{words}"):
        load_dataset(str(tmp_path))
