"""What a checkpoint says about itself, and where in the file its arrays lie.

Both follow from the description alone, so a reader builds the header that belongs to it and compares: there
is one layout for each description, and no offset is ever believed.
"""

from __future__ import annotations

import itertools
import json
import math
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec, check_limits
from p2psgd.wire.messages import ORIGINS_MAX, U64, FrontierRow
from p2psgd.wire.messages import Sequence as SequenceNumber
from p2psgd.wire.recording import TENSORS_MAX, Name, Shape
from p2psgd.wire.ring import ROUND_MAX

FORMAT: Final = 1
TEXT_BYTES_MAX: Final = 1024 * 1024  # of the trainer's own words
TRAINER_ARRAYS_MAX: Final = 4096
HASH_PLACE: Final = 8 + len(b'{"__metadata__":{"sha256":"')  # of its 64 hex digits in the file
NO_HASH: Final = "0" * 64  # what stands there while the file is hashed

DTYPES: Final = {  # safetensors' names
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
    "C64": "<c8",
    "F32": "<f4",
    "I32": "<i4",
    "U32": "<u4",
    "F16": "<f2",
    "I16": "<i2",
    "U16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}

Hex = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, le=2**40)]
ArrayName = Annotated[str, Field(min_length=1, max_length=200)]
ArrayShape = Annotated[tuple[Size, ...], Field(max_length=32)]


class Row(NamedTuple):
    """One origin's line of the frontier."""

    node: U64
    incarnation: U64
    sequence: SequenceNumber
    digest: U64
    mini_batch: U64


class Part(NamedTuple):
    """One tensor of the file."""

    name: str
    dtype: str  # safetensors' name of it
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


class TrainerMeta(BaseModel):
    """The trainer's state after own update `sequence`: beside the residual, its own arrays and words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: U64
    arrays: Annotated[tuple[tuple[ArrayName, str, ArrayShape], ...], Field(max_length=TRAINER_ARRAYS_MAX)]
    text: Annotated[str, Field(max_length=TEXT_BYTES_MAX)]


class CheckpointMeta(BaseModel):
    """Everything in a checkpoint but its arrays. `origin` is the life that wrote it; `rows` are the frontier
    of its coordinates and `digest` their digest; `written_at` is Unix time; `rounds` how many of a sparse
    ring were complete, which stands there only if some were.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: Literal[1]
    fingerprint: Hex
    mode: Annotated[str, Field(min_length=1, max_length=64)]
    quantum_log2: Annotated[int, Field(ge=-30, le=0)]
    label: Annotated[str, Field(max_length=200)]
    initial: Hex
    two_nodes: Annotated[str, Field(pattern="^(stall|lower-id)$")]
    tensors: Annotated[tuple[tuple[Name, Shape], ...], Field(min_length=1, max_length=TENSORS_MAX)]
    node: U64
    incarnation: U64
    rows: Annotated[tuple[Row, ...], Field(max_length=ORIGINS_MAX)]
    digest: U64
    trainer: TrainerMeta | None
    tail_bytes: Size
    written_at: Annotated[float, Field(ge=0, lt=2**37)]  # until the year 6325
    rounds: Annotated[int, Field(ge=0, le=ROUND_MAX)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> CheckpointMeta:
        check_limits(self.spec)
        if self.spec.fingerprint.hex() != self.fingerprint:
            raise ValueError("the run described does not have the fingerprint given")
        if any(before[:2] >= after[:2] for before, after in itertools.pairwise(self.rows)):
            raise ValueError("the frontier's rows are not in ascending order")
        if self.trainer is not None:
            if self.trainer.sequence > self.applied(self.origin):
                raise ValueError("the trainer's state is ahead of the frontier")
            if any(dtype not in DTYPES for _, dtype, _ in self.trainer.arrays):
                raise ValueError("an array of the trainer has a type that is not known")
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two tensors have the same name")
        return self

    @cached_property
    def spec(self) -> RunSpec:
        """The run."""
        fields = (self.tensors, self.quantum_log2, self.mode, self.label)
        return RunSpec(*fields, bytes.fromhex(self.initial), self.two_nodes)

    @property
    def origin(self) -> Origin:
        """The life that wrote it."""
        return Origin(self.node, self.incarnation)

    @property
    def frontier(self) -> list[FrontierRow]:
        """The rows as the core takes them: all durable here, nothing known of anybody's log."""
        return [FrontierRow(*row[:4], durable=row.sequence, mini_batch=row.mini_batch) for row in self.rows]

    @cached_property
    def _sequences(self) -> dict[tuple[int, int], int]:
        return {(row.node, row.incarnation): row.sequence for row in self.rows}

    def applied(self, origin: Origin) -> int:
        """The last update of `origin` in the coordinates, 0 if none."""
        return self._sequences.get(origin, 0)

    def covers(self, origin: Origin, sequence: int) -> bool:
        """Whether an own update, of this life or a former one, is in the coordinates and in the residual."""
        if origin == self.origin and self.trainer is not None:
            return sequence <= self.trainer.sequence
        return sequence <= self.applied(origin)

    @cached_property
    def parts(self) -> list[Part]:
        """The file's tensors in their order: larger elements first, so that each lies aligned."""
        parts = [Part(f"coordinates/{name}", "I32", shape) for name, shape in self.tensors]
        if self.trainer is not None:
            parts.append(Part("residual", "F32", (self.spec.weights,)))
            parts += [Part(f"trainer/{name}", dtype, shape) for name, dtype, shape in self.trainer.arrays]
        parts.append(Part("tail", "U8", (self.tail_bytes,)))
        return sorted(parts, key=lambda part: -np.dtype(DTYPES[part.dtype]).itemsize)

    def pack(self, sha256: str) -> bytes:
        """The file up to its first tensor: a safetensors header, its length a multiple of 8."""
        header: dict[str, object] = {
            "__metadata__": {"sha256": sha256, "p2psgd": self.model_dump_json(exclude_defaults=True)},
        }
        start = 0
        for part in self.parts:
            end = start + part.bytes
            header[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [start, end]}
            start = end
        packed = json.dumps(header, separators=(",", ":")).encode()
        packed += b" " * (-len(packed) % 8)
        return len(packed).to_bytes(8, "little") + packed
