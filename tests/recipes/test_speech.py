"""Windows of speech frames, clipped at the ends of utterances."""

import numpy as np
import pytest

from p2psgd.recipes.datasets import BANKS, STATES, SpeechSamples, load_dataset


@pytest.fixture
def samples() -> SpeechSamples:
    """Two utterances of 5 and 30 frames; every value of a frame is its own number."""
    mel = np.repeat(np.arange(35, dtype=np.uint8)[:, None], BANKS, axis=1)
    numbers = np.arange(35)
    return SpeechSamples(
        mel, (numbers % 68).astype(np.uint8), (numbers % 3).astype(np.uint8), np.array([0, 5, 35])
    )


def window(samples: SpeechSamples, frame: int) -> list[int]:
    """Numbers of the frames in the window around a frame."""
    batch = np.empty((1, samples.inputs), np.float32)
    samples.fill(np.array([frame]), batch)
    values = batch.reshape(17, BANKS)
    assert (values == values[:, :1]).all()
    return [int(value) for value in values[:, 0] * 32 + 128]


def test_a_window_holds_eight_frames_on_either_side(samples: SpeechSamples) -> None:
    assert samples.inputs == 340
    assert window(samples, 20) == list(range(12, 29))


def test_a_window_never_reaches_into_another_utterance(samples: SpeechSamples) -> None:
    assert window(samples, 0) == [0] * 9 + [1, 2, 3, 4] + [4] * 4
    assert window(samples, 4) == [0] * 5 + [1, 2, 3, 4] + [4] * 8
    assert window(samples, 5) == [5] * 9 + list(range(6, 14))
    assert window(samples, 34) == [*range(26, 35)] + [34] * 8


def test_labels_are_thirds_of_phones(samples: SpeechSamples) -> None:
    assert samples.labels[:4].tolist() == [0, 4, 8, 9]
    assert samples.labels.dtype == np.int32


def test_the_small_set_is_what_its_readme_says() -> None:
    data = load_dataset("speech-small")
    assert (data.train.inputs, data.classes) == (340, STATES)
    assert (len(data.train.labels), len(data.test.labels)) == (180_686, 36_547)
    labels = np.concatenate([data.train.labels, data.test.labels])
    assert (labels.min(), labels.max() < STATES) == (0, True)
    shares = np.bincount(data.test.labels) / len(data.test.labels)
    assert 0.02 < shares.max() < 0.04
    rows = np.array([0, 90_000, 180_685])
    batch = np.empty((3, 340), np.float32)
    data.train.fill(rows, batch)
    assert np.isfinite(batch).all()
    assert 0.1 < batch.std() < 3
