"""The list of a data set's shards: `shards.json` beside them, which all nodes of a run must have alike.

It says of every shard how long it is and what its bytes hash to, so that whatever a store gives can be
checked, and what arrays it holds, so that nets can be made before a shard was fetched. Its digest stands for
the whole of it in the run's fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from p2psgd.errors import ExitCode, UsageError

LIST_NAME: Final = "shards.json"
LIST_BYTES_MAX: Final = 64 * 1024 * 1024
SHARDS_MAX: Final = 65_536  # their counts take part in every digest and snapshot: 8 bytes each
FORMATS: Final = (".npz", ".npy", ".safetensors")
VERSION: Final = 1

Size = Annotated[int, Field(ge=0, le=2**48)]


class Array(BaseModel):
    """One array of a shard; `least` and `largest` of whole numbers in one dimension, which labels are."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    dtype: Annotated[str, Field(min_length=1, max_length=20)]
    shape: Annotated[tuple[Size, ...], Field(max_length=32, strict=False)]
    least: int | None = None
    largest: int | None = None


class Shard(BaseModel):
    """One file; `samples` is the first dimension of all its arrays."""

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
    """All shards, in the order of their names."""

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
        """Of all shards together."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """Of names and contents, in hex: equal lists name the same samples in the same order."""
        content = json.dumps([[shard.name, shard.bytes, shard.sha256] for shard in self.shards])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def with_array(self, name: str) -> tuple[Shard, ...]:
        """Those that hold an array of this name."""
        return tuple(shard for shard in self.shards if name in shard.arrays)

    def of(self, shards: Sequence[Shard]) -> ShardList:
        """A list of these alone."""
        return ShardList.model_construct(shards=tuple(shards))  # a copy would keep samples and digest

    def packed(self) -> bytes:
        """The file's content."""
        return (self.model_dump_json(exclude_none=True, indent=1) + "\n").encode()


def parse_list(content: bytes, where: str) -> ShardList:
    """What `packed` wrote; UsageError that begins with `where` if it is not exactly that."""
    try:
        return ShardList.model_validate_json(content)
    except ValidationError as error:
        words = f"{where} is no list of shards: {fault_of(error)}"
        raise UsageError(f"{words:.400}; make it anew with p2psgd data index", ExitCode.DATA) from None


def fault_of(error: ValidationError) -> str:
    """The first one, and where, in one line."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place + ': ' if place else ''}{fault['msg']}"
