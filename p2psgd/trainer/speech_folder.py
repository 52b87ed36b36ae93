"""A folder of speech: speech_train*.npz and speech_test*.npz, each with the arrays of SpeechSamples, joined
in the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.trainer.array_file import load_arrays
from p2psgd.trainer.refusal import bad_data
from p2psgd.trainer.speech import BANKS, PHONES, SpeechSamples

ARRAYS: Final = ("mel", "phone", "third", "utterance_start")


def is_speech(folder: Path) -> bool:
    """Whether it is a folder with training speech."""
    return folder.is_dir() and any(folder.glob("speech_train*.npz"))


def load_speech_folder(folder: Path) -> tuple[SpeechSamples, SpeechSamples]:
    """Training and test samples; UsageError that names the file which will not do."""
    train, test = (sorted(folder.glob(f"speech_{part}*.npz")) for part in ("train", "test"))
    if not test:
        raise bad_data(folder, "it has speech_train*.npz but no speech_test*.npz")
    return load_speech(train), load_speech(test)


def load_speech(paths: Sequence[Path]) -> SpeechSamples:
    """The speech of these files, one after the other; UsageError as above."""
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
