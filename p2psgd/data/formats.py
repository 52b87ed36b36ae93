"""A shard's bytes as named arrays: .npz, .npy and safetensors; pickles are never loaded."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from p2psgd.data.unreadable import UNREADABLE
from p2psgd.errors import ExitCode, UsageError

Arrays = dict[str, NDArray[Any]]
ONLY_ARRAY: Final = "array"  # what the one array of a .npy file is called


def load_shard(content: bytes, name: str) -> Arrays:
    """All arrays in the content of a file of this name, which says how it is read.

    UsageError (exit code 65) that names it if it is damaged, or if its arrays have not all the same, positive
    number of samples, their first dimension.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of odd headers before it refuses them
            arrays = _load(content, name)
    except (*UNREADABLE, AttributeError, safetensors.SafetensorError) as error:
        words = str(error) or type(error).__name__
        raise bad_shard(name, f"it is damaged, or not of plain arrays: {words:.300}") from None
    if not arrays:
        raise bad_shard(name, "it holds no arrays")
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        said = ", ".join(f"{length} of {key}" for key, length in lengths.items())
        raise bad_shard(name, f"its arrays must have the same number of samples, at least one: {said:.300}")
    return arrays


def bad_shard(name: str, words: str) -> UsageError:
    """The error for something wrong with one shard."""
    return UsageError(f"shard {name}: {words}", ExitCode.DATA)


def _load(content: bytes, name: str) -> Arrays:
    if name.endswith(".safetensors"):
        return _load_safetensors(content)
    if name.endswith(".npy"):
        return {ONLY_ARRAY: np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)}
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise ValueError("it is not a .npz file")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _load_safetensors(content: bytes) -> Arrays:
    length = int.from_bytes(content[:8], "little")
    for key, entry in json.loads(content[8 : 8 + length]).items():
        if key != "__metadata__" and entry["dtype"] in {"BF16", "F8_E4M3", "F8_E5M2"}:
            raise ValueError(f"{key} is of {entry['dtype']}, which numpy has not: save it as F16 or F32")
    arrays: Arrays = safetensors.numpy.load(content)
    return arrays
