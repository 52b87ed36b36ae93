"""A checkpoint: all that a node needs to go on after a restart, as one safetensors file.

Tensors: `coordinates/NAME` int32 for each tensor of the run, `tail` uint8 (UPDATE frames as on the wire), and
if a trainer was attached `residual` float32 (P,) and `trainer/NAME` for what its script keeps. The metadata
has two keys: `p2psgd`, the description (meta.py) as JSON, and `sha256`, the hash of the whole file with zeros
in the place of its own digits. Read with any safetensors reader; written here, so that nothing is copied to
be written and an error of the disk keeps its number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.tail import Tail, UnreadableTailError
from p2psgd.durable.atomic import replacing
from p2psgd.durable.meta import DTYPES, FORMAT, HASH_PLACE, NO_HASH, CheckpointMeta, Row, TrainerMeta
from p2psgd.durable.tail_frames import ending_at, is_whole, split_frames
from p2psgd.errors import CheckpointError, CheckpointUnreadable, words_of
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow

HEADER_BYTES_MAX: Final = 16 * 1024**2  # well above 4,096 tensors, 1,024 origins and the trainer's words
FRAMES_AT_A_TIME: Final = 256  # of the tail are read, and joined: hashing and writing each would cost more
SLICE_BYTES: Final = 1024 * 1024  # hashed and written at a time, while it is in the processor's cache
_TYPE_NAMES: Final = {np.dtype(numpy_name): name for name, numpy_name in DTYPES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """Where the trainer was after own update `sequence` of the life that wrote it.

    `residual` float32 (P,); `arrays` and `text` are the script's own. A life whose trainer has not attached
    yet hands on what it restored, with sequence 0.
    """

    sequence: int
    residual: NDArray[np.float32]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A node's state: `coordinates` int32 (P,) at the frontier `rows`, with `digest`; `tail` are UPDATE
    frames. `origin` is the life that wrote it, `written_at` Unix time; `rounds` of a sparse ring were
    complete. `warning` says what of it could not be read, empty if all was.
    """

    spec: RunSpec
    origin: Origin
    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: Tail | list[bytes]
    trainer: TrainerState | None
    written_at: float
    rounds: int = 0
    warning: str = ""

    @property
    def tail_bytes(self) -> int:
        """Of all frames in the tail."""
        return self.tail.frame_bytes if isinstance(self.tail, Tail) else sum(map(len, self.tail))

    def describe(self) -> CheckpointMeta:
        """Its description; CheckpointError if the trainer's state is not one that can be kept."""
        trainer = self.trainer
        if trainer is not None and not is_finite(trainer.residual):
            raise CheckpointError("this cannot be kept in a checkpoint: the residual is not finite")
        try:
            return CheckpointMeta(
                format=FORMAT,
                fingerprint=self.spec.fingerprint.hex(),
                mode=self.spec.mode,
                quantum_log2=self.spec.quantum_log2,
                label=self.spec.label,
                initial=self.spec.initial.hex(),
                two_nodes=self.spec.two_nodes,
                tensors=self.spec.tensors,
                node=self.origin.node,
                incarnation=self.origin.incarnation,
                rows=tuple(Row(*row[:4], row.mini_batch) for row in sorted(self.rows)),
                digest=self.digest,
                trainer=None if trainer is None else _describe_trainer(trainer),
                tail_bytes=self.tail_bytes,
                written_at=self.written_at,
                rounds=self.rounds,
            )
        except ValidationError as error:
            raise CheckpointError(f"this cannot be kept in a checkpoint: {_fault(error)}") from None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> CheckpointMeta:
    """Write it to `path`, which it replaces once it is whole and on disk; returns its description.

    OSError if it cannot be written, UnreadableTailError if a frame of the tail cannot be read or has changed,
    CheckpointError if the trainer's state cannot be kept.
    """
    meta = checkpoint.describe()
    digest = hashlib.sha256()
    with replacing(path) as file:
        for piece in chain([memoryview(meta.pack(NO_HASH))], _pieces(meta, checkpoint)):
            for start in range(0, len(piece), SLICE_BYTES):
                part = piece[start : start + SLICE_BYTES]
                digest.update(part)
                file.write(part)
        file.seek(HASH_PLACE)
        file.write(digest.hexdigest().encode())
    return meta


def read_meta(path: Path) -> CheckpointMeta:
    """The description alone, without checking the hash; CheckpointError, also if there is no such file."""
    with _reading(path) as file:
        return _read_head(file)[0]


def read_checkpoint(path: Path) -> Checkpoint:
    """The whole of it, verified: hash, shapes, limits, and that the coordinates have the digest.

    CheckpointError with a sentence otherwise, also if there is no such file. Only a tail that was already
    damaged when it was written costs no more than what of it is.
    """
    with _reading(path) as file:
        meta, sha256 = _read_head(file)
        digest = hashlib.sha256(meta.pack(NO_HASH))
        coordinates = np.empty(meta.spec.weights, np.int32)
        arrays = _places(meta, coordinates)
        for part in meta.parts:
            _fill(file, arrays[part.name], digest)
    if digest.hexdigest() != sha256:
        raise CheckpointError("it does not have its hash: a part of it has changed")
    trainer = None
    if meta.trainer is not None:
        own = {name: arrays[f"trainer/{name}"] for name, _, _ in meta.trainer.arrays}
        trainer = TrainerState(meta.trainer.sequence, arrays["residual"], own, meta.trainer.text)
    spec = meta.spec
    read, fault = split_frames(arrays["tail"].tobytes(), spec.weights)
    tail = ending_at(meta.frontier, read) if fault else [frame for _, frame in read]
    found = Checkpoint(
        spec=spec,
        origin=meta.origin,
        coordinates=coordinates,
        rows=meta.frontier,
        digest=meta.digest,
        tail=tail,
        trainer=trainer,
        written_at=meta.written_at,
        rounds=meta.rounds,
        warning=f"its tail is damaged, {len(tail)} updates of it can be used: {fault}" if fault else "",
    )
    _check(found)
    return found


def is_finite(residual: NDArray[np.float32]) -> bool:
    """None of it is NaN or infinite; takes no memory."""
    return math.isfinite(residual.min()) and math.isfinite(residual.max())


def _describe_trainer(trainer: TrainerState) -> TrainerMeta:
    arrays = tuple(
        (name, _TYPE_NAMES.get(array.dtype.newbyteorder("<"), str(array.dtype)), array.shape)
        for name, array in trainer.arrays.items()
    )
    return TrainerMeta(sequence=trainer.sequence, arrays=arrays, text=trainer.text)


def _pieces(meta: CheckpointMeta, checkpoint: Checkpoint) -> Iterator[memoryview]:
    """The bytes of all tensors in the order of the file; only what is not contiguous is copied."""
    place = 0
    for name, _, shape in meta.parts:
        kind, _, rest = name.partition("/")
        if kind == "tail":
            frames = _whole(checkpoint.tail, meta.spec.weights)
            while piece := b"".join(islice(frames, FRAMES_AT_A_TIME)):
                yield memoryview(piece)
        elif kind == "coordinates":
            yield _bytes_of(checkpoint.coordinates[place : place + math.prod(shape)])
            place += math.prod(shape)
        else:
            assert checkpoint.trainer is not None
            yield _bytes_of(checkpoint.trainer.arrays[rest] if rest else checkpoint.trainer.residual)


def _whole(tail: Iterable[bytes], weights: int) -> Iterator[bytes]:
    """Its frames; UnreadableTailError at one that has changed in memory."""
    for frame in tail:
        if not is_whole(frame, weights):
            raise UnreadableTailError("an update in memory has changed")
        yield frame


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """An array's elements, little-endian; the array's own memory where that is possible."""
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def _places(meta: CheckpointMeta, coordinates: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Memory for each tensor; those of the run are parts of `coordinates`."""
    arrays: dict[str, NDArray[Any]] = {}
    place = 0
    for part in meta.parts:
        if part.name.startswith("coordinates/"):
            size = math.prod(part.shape)
            arrays[part.name] = coordinates[place : place + size]
            place += size
        else:
            arrays[part.name] = np.empty(part.shape, DTYPES[part.dtype])
    return arrays


def _fill(file: BufferedReader, array: NDArray[Any], digest: hashlib._Hash) -> None:
    """Read an array's bytes and add them to the hash."""
    view = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(view), SLICE_BYTES):
        part = view[start : start + SLICE_BYTES]
        if file.readinto(part) != len(part):
            raise CheckpointError("it ends too early")
        digest.update(part)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointUnreadable(f"it cannot be read: {words_of(error)}") from None


def _read_head(file: BufferedReader) -> tuple[CheckpointMeta, str]:
    """Description and hash from the start of the file, which is left at its first tensor."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= HEADER_BYTES_MAX:
        raise CheckpointError("it does not begin like a checkpoint")
    packed = file.read(length)
    try:
        metadata = json.loads(packed)["__metadata__"]
        sha256, meta = str(metadata["sha256"]), CheckpointMeta.model_validate_json(metadata["p2psgd"])
    except ValidationError as error:
        raise CheckpointError(f"its description is not valid: {_fault(error)}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise CheckpointError("it does not begin like a checkpoint") from None
    if meta.pack(sha256)[8:] != packed:
        raise CheckpointError("its header is not the one that belongs to its description")
    expected = 8 + length + sum(part.bytes for part in meta.parts)
    if (size := os.fstat(file.fileno()).st_size) != expected:
        raise CheckpointError(f"it has {size} bytes where {expected} belong")
    return meta, sha256


def _check(found: Checkpoint) -> None:
    """What the hash does not prove: that it holds what a replica can go on from."""
    if codec.digest_coordinates(found.coordinates, found.spec.key) != found.digest:
        raise CheckpointError("its coordinates do not have its digest")
    largest = 0 if found.spec.dense else max(int(found.coordinates.max()), -int(found.coordinates.min()))
    if largest > codec.COORDINATE_MAX:
        raise CheckpointError(f"a coordinate of it is beyond {codec.COORDINATE_MAX}")
    if found.trainer is not None and not is_finite(found.trainer.residual):
        raise CheckpointError("its residual is not finite")


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"[:300] if where else f"{first['msg']}"[:300]
