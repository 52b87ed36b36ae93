"""Frames of speech as samples: each is a window of 17 frames of 20 log-mel values around the frame to
classify.

The windows overlap, so they are never stored: a table of frames and, for every frame, the bounds of its
utterance give a mini-batch by one gather. That holds the small set in 14 MB instead of 245 MB. At the ends of
an utterance the window repeats the first or last frame. The target is the state 3 x phone + third [Strom
2015, section 4.1: context window and phonetic states].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.trainer.net import Labels

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
