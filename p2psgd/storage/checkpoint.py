"""A checkpoint: all that a node needs to go on after a restart, as one safetensors file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from p2psgd.base.errors import CheckpointError, CheckpointUnreadable, words_of
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.covers import Covers
from p2psgd.core.owners.rules import make_rule
from p2psgd.core.run_spec import RunSpec, check_limits
from p2psgd.core.update_log import Tail, UnreadableTailError
from p2psgd.ipc.tensor_table import TENSORS_MAX
from p2psgd.storage.files import replacing
from p2psgd.wire import codec
from p2psgd.wire.frames import COVER_BYTES_MAX, PREFIX, FrameType, link_limits
from p2psgd.wire.messages import ORIGINS_MAX, U64, FrontierRow
from p2psgd.wire.messages import Sequence as SequenceNumber
from p2psgd.wire.mode import WORD_MAX, parse_mode
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import ROUND_MAX
from p2psgd.wire.rule_state import split_rule_states
from p2psgd.wire.update import UpdateHeader, parse_update

# ----------------------------------------------------------------------------
# The description of a checkpoint, and where in the file its arrays lie.
#
# Both follow from the description alone, so a reader builds the header that belongs to it and compares: there
# is one layout for each description, and no offset is ever believed.


FORMAT: Final = 2
SHARD_COUNTS: Final = "shard_counts"  # the tensor of the second replica vector, if the run counts shards
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
Name = Annotated[str, Field(min_length=1, max_length=200)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=codec.WEIGHTS_MAX)], ...], Field(max_length=16)]
ShardCount = Annotated[int, Field(ge=0, le=codec.WEIGHTS_MAX // codec.COUNTS_PER_SHARD)]
ArrayName = Annotated[str, Field(min_length=1, max_length=200)]
ArrayShape = Annotated[tuple[Size, ...], Field(max_length=32)]


class Row(NamedTuple):
    """A row of the frontier, for one origin."""

    node: U64
    incarnation: U64
    sequence: SequenceNumber
    digest: U64
    steps: U64


class Part(NamedTuple):
    """A tensor of the file."""

    name: str
    dtype: str  # safetensors' name of it
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Return the tensor's size in the file."""
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


class TrainerMeta(BaseModel):
    """The trainer's state after own update `sequence`: beside the residual, its own arrays and words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: U64
    arrays: Annotated[tuple[tuple[ArrayName, str, ArrayShape], ...], Field(max_length=TRAINER_ARRAYS_MAX)]
    text: Annotated[str, Field(max_length=TEXT_BYTES_MAX)]


def _known_format(number: int) -> int:
    if number != FORMAT:
        raise ValueError(f"it has format {number}, this p2psgd reads format {FORMAT}")
    return number


class CheckpointMeta(BaseModel):
    """The description of a checkpoint: everything but its arrays. `origin` is the incarnation that wrote it;
    `rows` are the frontier of its coordinates and `digest` their digest; `written_at` is Unix time; `rounds`
    counts the complete rounds of a sparse ring, and `owners` the bytes of each owner's cover; both are absent
    if there were none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: Annotated[int, AfterValidator(_known_format)]
    fingerprint: Hex
    mode: Annotated[str, Field(min_length=1, max_length=WORD_MAX)]
    quantum_log2: Annotated[int, Field(ge=-30, le=0)]
    label: Annotated[str, Field(max_length=200)]
    initial: Hex
    two_nodes: Annotated[str, Field(pattern="^(stall|lower-id)$")]
    tensors: Annotated[tuple[tuple[Name, Shape], ...], Field(min_length=1, max_length=TENSORS_MAX)]
    shards: ShardCount
    node: U64
    incarnation: U64
    rows: Annotated[tuple[Row, ...], Field(max_length=ORIGINS_MAX)]
    digest: U64
    trainer: TrainerMeta | None
    tail_bytes: Size
    written_at: Annotated[float, Field(ge=0, lt=2**37)]  # until the year 6325
    rounds: Annotated[int, Field(ge=0, le=ROUND_MAX)] = 0
    owners: Annotated[
        tuple[Annotated[int, Field(ge=1, le=COVER_BYTES_MAX)], ...], Field(max_length=ORIGINS_MAX)
    ] = ()
    rule_state_bytes: Size = 0

    @model_validator(mode="after")
    def _consistent(self) -> CheckpointMeta:
        check_limits(self.spec)
        if self.spec.fingerprint.hex() != self.fingerprint:
            raise ValueError("the run described does not have the fingerprint given")
        if any(before[:2] >= after[:2] for before, after in itertools.pairwise(self.rows)):
            raise ValueError("the frontier's rows are not in ascending order")
        if self.owners and not self.spec.owners:
            raise ValueError("it has covers of owners, and the ranges of its run have none")
        if self.rule_state_bytes and make_rule(parse_mode(self.mode).rule) is None:
            raise ValueError("it has the state of a rule, and its run's rule has none")
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
        """Return the run."""
        fields = (self.tensors, self.quantum_log2, self.mode, self.label)
        return RunSpec(*fields, bytes.fromhex(self.initial), self.two_nodes, self.shards)

    @property
    def origin(self) -> Origin:
        """Return the incarnation that wrote the checkpoint."""
        return Origin(self.node, self.incarnation)

    @property
    def frontier(self) -> list[FrontierRow]:
        """Return the rows as the core takes them: all durable here, nothing known of the log of any node."""
        return [FrontierRow(*row[:4], durable=row.sequence, steps=row.steps) for row in self.rows]

    @cached_property
    def _sequences(self) -> dict[tuple[int, int], int]:
        return {(row.node, row.incarnation): row.sequence for row in self.rows}

    def applied(self, origin: Origin) -> int:
        """Return the last update of `origin` in the coordinates, 0 if none."""
        return self._sequences.get(origin, 0)

    def covers(self, origin: Origin, sequence: int) -> bool:
        """Return whether an own update, of this incarnation or a former one, is in the coordinates and in the
        residual.
        """
        if origin == self.origin and self.trainer is not None:
            return sequence <= self.trainer.sequence
        return sequence <= self.applied(origin)

    @cached_property
    def parts(self) -> list[Part]:
        """Return the file's tensors in their order: larger elements first, so that each lies aligned."""
        parts = [Part(f"coordinates/{name}", "I32", shape) for name, shape in self.tensors]
        if self.shards:
            parts.append(Part(SHARD_COUNTS, "I32", (codec.COUNTS_PER_SHARD, self.shards)))
        if self.trainer is not None:
            parts.append(Part("residual", "F32", (self.spec.weights,)))
            parts += [Part(f"trainer/{name}", dtype, shape) for name, dtype, shape in self.trainer.arrays]
        if self.owners:
            parts.append(Part("covers", "U8", (sum(self.owners),)))
        if self.rule_state_bytes:
            parts.append(Part("rule_states", "U8", (self.rule_state_bytes,)))
        parts.append(Part("tail", "U8", (self.tail_bytes,)))
        return sorted(parts, key=lambda part: -np.dtype(DTYPES[part.dtype]).itemsize)

    def pack(self, sha256: str) -> bytes:
        """Build the file up to its first tensor: a safetensors header, its length a multiple of 8."""
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


# ----------------------------------------------------------------------------
# The UPDATE frames of a checkpoint's tail: each is looked at as it is written, and again as it is read.
#
# A frame lies in RAM for long, where a bit of it may change. The weights of a checkpoint do not need its
# tail, so damage costs that part of the tail and no more.


Read = list[tuple[UpdateHeader, bytes]]


def is_whole(frame: bytes, weights: int) -> bool:
    """Return whether the bytes are one UPDATE frame with a valid header and checksum."""
    return _header_of(frame, weights) is not None


def split_frames(tail: bytes, weights: int) -> tuple[Read, str]:
    """Cut the tail into its whole UPDATE frames, and describe the fault of the first of the others, if there
    are any.

    The search ends at a length that is impossible.
    """
    found: Read = []
    fault, start, limit = "", 0, link_limits(weights)[FrameType.UPDATE]
    while start < len(tail):
        if len(tail) - start < PREFIX.size:
            return found, fault or "it ends inside a frame"
        length, frame_type = PREFIX.unpack_from(tail, start)
        end = start + PREFIX.size + length
        if frame_type != FrameType.UPDATE or not 0 < length <= limit or end > len(tail):
            return found, fault or "it is not made of whole updates"
        frame = tail[start:end]
        header = _header_of(frame, weights)
        if header is None:
            fault = fault or "an update of it has changed"
        else:
            found.append((header, frame))
        start = end
    return found, fault


def ending_at(rows: list[FrontierRow], read: Read) -> list[bytes]:
    """Keep for each origin only the updates that lead without a hole to its row: those before a hole are of
    no use.
    """
    first = {Origin(row.node, row.incarnation): row.sequence + 1 for row in rows}
    kept = []
    for header, frame in reversed(read):
        origin = Origin(header.node, header.incarnation)
        if header.sequence == first.get(origin, 0) - 1:
            first[origin] = header.sequence
            kept.append(frame)
    return kept[::-1]


def _header_of(frame: bytes, weights: int) -> UpdateHeader | None:
    """Parse the header of a frame; None if it is not a whole UPDATE frame."""
    if len(frame) <= PREFIX.size or PREFIX.unpack_from(frame) != (len(frame) - PREFIX.size, FrameType.UPDATE):
        return None
    try:
        return parse_update(memoryview(frame)[PREFIX.size :], weights)[0]
    except PeerError:
        return None


# ----------------------------------------------------------------------------
# A checkpoint: all that a node needs to go on after a restart, as one safetensors file.
#
# Tensors: `coordinates/NAME` int32 for each tensor of the run, `shard_counts` int32 (2, shards) if it counts
# shards, `covers` uint8 (bodies of SNAPSHOT_COVER frames) if weights have owners, `rule_states` uint8 (bodies
# of RULE_STATE frames) if these have a rule with a state, `tail` uint8 (UPDATE frames as on the wire), and if
# a trainer was attached `residual` float32 (P,) and `trainer/NAME` for what its script keeps. The metadata
# has two keys: `p2psgd`, the description (CheckpointMeta) as JSON, and `sha256`, the hash of the whole file
# with zeros in the place of its own
# digits. Read with any safetensors reader; written here, so that nothing is copied to be written and an error
# of the disk keeps its number.


HEADER_BYTES_MAX: Final = 32 * 1024**2  # well above 16,384 tensors, 1,024 origins and the trainer's words
FRAMES_AT_A_TIME: Final = 256  # of the tail are read, and joined: hashing and writing each would cost more
SLICE_BYTES: Final = 1024 * 1024  # hashed and written at a time, while it is in the processor's cache
_TYPE_NAMES: Final = {np.dtype(numpy_name): name for name, numpy_name in DTYPES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class TrainerCheckpoint:
    """The trainer's state after own update `sequence` of the incarnation that wrote it.

    `residual` float32 (P,); `arrays` and `text` are the script's own. An incarnation whose trainer has not
    attached yet hands on what it restored, with sequence 0.
    """

    sequence: int
    residual: NDArray[np.float32]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A node's state: `coordinates` int32 (C,) at the frontier `rows`, with `digest`; `tail` are UPDATE
    frames. `origin` is the incarnation that wrote it, `written_at` Unix time; `rounds` of a sparse ring were
    complete; `covers` are the packed Covers of owners, `rule_states` bodies of RULE_STATE frames. `warning`
    says what of it could not be read, empty if all was.
    """

    spec: RunSpec
    origin: Origin
    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: Tail | list[bytes]
    trainer: TrainerCheckpoint | None
    written_at: float
    rounds: int = 0
    covers: list[bytes] = field(default_factory=list)
    rule_states: list[bytes] = field(default_factory=list)
    warning: str = ""

    @property
    def tail_bytes(self) -> int:
        """Return the bytes of all frames in the tail."""
        return self.tail.frame_bytes if isinstance(self.tail, Tail) else sum(map(len, self.tail))

    def describe(self) -> CheckpointMeta:
        """Build the checkpoint's description; CheckpointError if the trainer's state is not one that can be
        kept.
        """
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
                shards=self.spec.shards,
                node=self.origin.node,
                incarnation=self.origin.incarnation,
                rows=tuple(Row(*row[:4], row.steps) for row in sorted(self.rows)),
                digest=self.digest,
                trainer=None if trainer is None else _describe_trainer(trainer),
                tail_bytes=self.tail_bytes,
                written_at=self.written_at,
                rounds=self.rounds,
                owners=tuple(map(len, self.covers)),
                rule_state_bytes=sum(map(len, self.rule_states)),
            )
        except ValidationError as error:
            raise CheckpointError(f"this cannot be kept in a checkpoint: {_fault(error)}") from None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> CheckpointMeta:
    """Write a checkpoint to `path`, which it replaces once it is whole and on disk; return its description.

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
    """Read the description alone, without checking the hash; CheckpointError, also if there is no
    such file.
    """
    with _reading(path) as file:
        return _read_head(file)[0]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a whole checkpoint and verify it: hash, shapes, limits, and that the coordinates have the digest.

    CheckpointError with a sentence otherwise, also if there is no such file. A tail that was already damaged
    when it was written costs only the damaged part.
    """
    with _reading(path) as file:
        meta, sha256 = _read_head(file)
        digest = hashlib.sha256(meta.pack(NO_HASH))
        coordinates = np.empty(meta.spec.coordinates, np.int32)
        arrays = _places(meta, coordinates)
        for part in meta.parts:
            _fill(file, arrays[part.name], digest)
    if digest.hexdigest() != sha256:
        raise CheckpointError("it does not have its hash: a part of it has changed")
    trainer = None
    if meta.trainer is not None:
        own = {name: arrays[f"trainer/{name}"] for name, _, _ in meta.trainer.arrays}
        trainer = TrainerCheckpoint(meta.trainer.sequence, arrays["residual"], own, meta.trainer.text)
    spec = meta.spec
    read, fault = split_frames(arrays["tail"].tobytes(), spec.coordinates)
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
        covers=_split(arrays["covers"].tobytes(), meta.owners) if meta.owners else [],
        rule_states=_rule_states(meta, arrays),
        warning=f"its tail is damaged, {len(tail)} updates of it can be used: {fault}" if fault else "",
    )
    _check(found)
    return found


def _rule_states(meta: CheckpointMeta, arrays: Mapping[str, NDArray[Any]]) -> list[bytes]:
    rule = make_rule(parse_mode(meta.mode).rule)
    if rule is None or not meta.rule_state_bytes:
        return []
    try:
        return split_rule_states(arrays["rule_states"].tobytes(), meta.spec.weights, len(rule.state.arrays))
    except PeerError as error:
        raise CheckpointError(f"its rule's state is not valid: {error}") from None


def _split(packed: bytes, sizes: Iterable[int]) -> list[bytes]:
    ends = list(itertools.accumulate(sizes, initial=0))
    return [packed[begin:end] for begin, end in itertools.pairwise(ends)]


def is_finite(residual: NDArray[np.float32]) -> bool:
    """Return whether no element is NaN or infinite; takes no memory."""
    return math.isfinite(residual.min()) and math.isfinite(residual.max())


def _describe_trainer(trainer: TrainerCheckpoint) -> TrainerMeta:
    arrays = tuple(
        (name, _TYPE_NAMES.get(array.dtype.newbyteorder("<"), str(array.dtype)), array.shape)
        for name, array in trainer.arrays.items()
    )
    return TrainerMeta(sequence=trainer.sequence, arrays=arrays, text=trainer.text)


def _pieces(meta: CheckpointMeta, checkpoint: Checkpoint) -> Iterator[memoryview]:
    """Yield the bytes of all tensors in the order of the file; only what is not contiguous is copied."""
    place = 0
    for name, _, shape in meta.parts:
        kind, _, rest = name.partition("/")
        if kind == "tail":
            frames = _whole(checkpoint.tail, meta.spec.coordinates)
            while piece := b"".join(islice(frames, FRAMES_AT_A_TIME)):
                yield memoryview(piece)
        elif kind == "covers":
            yield memoryview(b"".join(checkpoint.covers))
        elif kind == "rule_states":
            yield memoryview(b"".join(checkpoint.rule_states))
        elif kind in ("coordinates", SHARD_COUNTS):
            yield _bytes_of(checkpoint.coordinates[place : place + math.prod(shape)])
            place += math.prod(shape)
        else:
            assert checkpoint.trainer is not None
            yield _bytes_of(checkpoint.trainer.arrays[rest] if rest else checkpoint.trainer.residual)


def _whole(tail: Iterable[bytes], weights: int) -> Iterator[bytes]:
    """Yield the frames of the tail; UnreadableTailError at one that has changed in memory."""
    for frame in tail:
        if not is_whole(frame, weights):
            raise UnreadableTailError("an update in memory has changed")
        yield frame


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Return an array's elements, little-endian; the array's own memory where that is possible."""
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def _places(meta: CheckpointMeta, coordinates: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Allocate memory for each tensor; those of the run are parts of `coordinates`."""
    arrays: dict[str, NDArray[Any]] = {}
    place = 0
    for part in meta.parts:
        if part.name.startswith("coordinates/") or part.name == SHARD_COUNTS:
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
    """Read description and hash from the start of the file, which is left at its first tensor."""
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
    """Check what the hash does not prove: that a replica can go on from this content."""
    if codec.digest_coordinates(found.coordinates, found.spec.key) != found.digest:
        raise CheckpointError("its coordinates do not have its digest")
    largest = 0 if found.spec.dense else max(int(found.coordinates.max()), -int(found.coordinates.min()))
    if largest > codec.COORDINATE_MAX:
        raise CheckpointError(f"a coordinate of it is beyond {codec.COORDINATE_MAX}")
    if found.trainer is not None and not is_finite(found.trainer.residual):
        raise CheckpointError("its residual is not finite")
    try:
        owners = set(Covers(found.covers).owners)
    except PeerError as error:
        raise CheckpointError(f"its covers are not valid: {error}") from None
    if owners - {Origin(row.node, row.incarnation) for row in found.rows}:
        raise CheckpointError("it has the cover of an owner of which it has no update")


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"[:300] if where else f"{first['msg']}"[:300]
