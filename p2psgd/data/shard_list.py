"""Define the list of a data set's shards, and the formats that a shard may have."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Self

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from p2psgd.base.errors import ExitCode, UsageError

# ----------------------------------------------------------------------------
# The list of a data set's shards: `shards.json` beside them, which all nodes of a run must have alike.
#
# It says of every shard how long it is and what its bytes hash to, so that whatever a store gives can be
# checked, and what arrays it holds, so that nets can be made before a shard was fetched. Its digest stands
# for the whole of it in the run's fingerprint.


LIST_NAME: Final = "shards.json"
LIST_BYTES_MAX: Final = 64 * 1024 * 1024
SHARDS_MAX: Final = 65_536  # their counts take part in every digest and snapshot: 8 bytes each
FORMATS: Final = (".npz", ".npy", ".safetensors")
VERSION: Final = 1

Size = Annotated[int, Field(ge=0, le=2**48)]


class Array(BaseModel):
    """An array of a shard; `least` and `largest` are given for whole numbers in one dimension, such as
    labels.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    dtype: Annotated[str, Field(min_length=1, max_length=20)]
    shape: Annotated[tuple[Size, ...], Field(max_length=32, strict=False)]
    least: int | None = None
    largest: int | None = None


class Shard(BaseModel):
    """A file of the data set; `samples` is the first dimension of all its arrays."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=500)]
    bytes: Annotated[int, Field(ge=1, le=2**48)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    samples: Annotated[int, Field(ge=1, le=2**48)]
    arrays: Annotated[dict[str, Array], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name.startswith("/") or {"..", ".", ""} & set(self.name.split("/")) or "\\" in self.name:
            raise ValueError("a name is a path below the list's own folder, without backslashes")
        if not self.name.isprintable():
            raise ValueError("a name has no line breaks or other characters that cannot be printed")
        if not self.name.endswith(FORMATS):
            raise ValueError(f"a name ends in {', '.join(FORMATS)}")
        if any(array.shape[:1] != (self.samples,) for array in self.arrays.values()):
            raise ValueError("the first dimension of all its arrays is its number of samples")
        return self


class ShardList(BaseModel):
    """The list of all shards, in the order of their names."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    version: Annotated[int, Field(ge=VERSION, le=VERSION)] = VERSION
    shards: Annotated[tuple[Shard, ...], Field(min_length=1, max_length=SHARDS_MAX, strict=False)]

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        names = [shard.name for shard in self.shards]
        if names != sorted(set(names)):
            raise ValueError("the shards must stand in the order of their names, each once")
        return self

    @cached_property
    def samples(self) -> int:
        """The number of samples in all shards together."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """The digest of names and contents, in hex: equal lists name the same samples in the same order."""
        content = json.dumps([[shard.name, shard.bytes, shard.sha256] for shard in self.shards])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def label(self, label: str) -> str:
        """Return the label of a run that is trained on these shards: its own `label`, then their digest."""
        return f"{label} data {self.digest}".strip()

    def with_array(self, name: str) -> tuple[Shard, ...]:
        """Return the shards that contain an array of this name."""
        return tuple(shard for shard in self.shards if name in shard.arrays)

    def of(self, shards: Sequence[Shard]) -> ShardList:
        """Return a list of these shards alone."""
        return ShardList.model_construct(shards=tuple(shards))  # a copy would keep samples and digest

    def packed(self) -> bytes:
        """Return the content of the file."""
        return (self.model_dump_json(exclude_none=True, indent=1) + "\n").encode()


def parse_list(content: bytes, where: str) -> ShardList:
    """Read the output of `packed`; any other content is a UsageError that begins with `where`."""
    try:
        return ShardList.model_validate_json(content)
    except ValidationError as error:
        words = f"{where} is no list of shards: {fault_of(error)}"
        raise UsageError(f"{words:.400}; make it anew with p2psgd data index", ExitCode.DATA) from None


def fault_of(error: ValidationError) -> str:
    """Return the first fault and its place, in one line."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place + ': ' if place else ''}{fault['msg']}"


# ----------------------------------------------------------------------------
# What damaged or hostile .npy and .npz files have their readers raise.


UNREADABLE: Final = (  # by zipfile, its decompressors and numpy's parser of headers
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    EOFError,
    MemoryError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


# ----------------------------------------------------------------------------
# A shard's bytes as named arrays: .npz, .npy and safetensors; pickles are never loaded.


Arrays = dict[str, NDArray[Any]]
ONLY_ARRAY: Final = "array"  # what the one array of a .npy file is called


def load_shard(content: bytes, name: str) -> Arrays:
    """Return all arrays in the content of a file, whose name determines the format.

    UsageError (exit code 65) that names the file if it is damaged, or if its arrays do not all have the same,
    positive number of samples, their first dimension.
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
    """Return the error for a fault of one shard."""
    return UsageError(f"shard {name}: {words}", ExitCode.DATA)


def _load(content: bytes, name: str) -> Arrays:
    try:
        return _load_once(content, name)
    except SystemError:  # CPython 3.11 raises it when another thread parses Python too (its issue 106905)
        return _load_once(content, name)


def _load_once(content: bytes, name: str) -> Arrays:
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
