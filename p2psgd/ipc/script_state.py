"""State of a training script: its bytes in a memfd, and the copy that the daemon keeps."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Hashable, Iterable, Mapping
from typing import Annotated, Any, Final, TypeGuard

import msgpack
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.protocol import Name, Strict, describe_fault, unpack_datagram
from p2psgd.ipc.segments import map_sealed, sealed_copy

# ----------------------------------------------------------------------------
# What a training script wants back after a restart, as the bytes of one memfd.
#
# A u32 with the length of a header, the header (a MessagePack map that names each value, its kind and its
# shape), then the values one after the other; each begins at a multiple of 64 bytes. Numbers and texts are
# small arrays in there. Both sides read it as strictly as everything else that they share: sizes are bounded
# before anything is built, nothing is executed, and what is read are views.


STATE_BYTES_MAX: Final = 2**30
VALUES_MAX: Final = 4096
HEADER_BYTES_MAX: Final = 2**20
ALIGNMENT: Final = 64  # of a value, as a mapped array wants it
ARRAYS: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
PLAIN: Final = {"an int": "int64", "a float": "float64", "a text": "uint8", "bytes": "uint8"}
_LENGTH: Final = struct.Struct("<I")

BUFFER: Final = "buffer:"  # then a name: an array that files of weights have as well, under that name
TRAINED: Final = "trained:"  # an array (P,): the weights that files of weights have in place of the replica's
EVALUATED: Final = "evaluated:"  # likewise, where there are no others: the point of the last evaluation
ENDED: Final = "ended:"  # a text: what these weights are of. Where it is the same, so are the weights.
OWN: Final = "weights of the script's own"  # begins that text where they are TRAINED
ALIAS: Final = "alias:"  # then a name: a text, the tensor or buffer that files of weights have a second time

ScriptValue = NDArray[Any] | int | float | str | bytes | memoryview
ScriptState = dict[str, ScriptValue]
Side = Annotated[int, Field(ge=0, le=STATE_BYTES_MAX)]
Value = tuple[Name, str, Annotated[tuple[Side, ...], Field(max_length=16)]]


def trained_weights(state: Mapping[str, ScriptValue] | None, weights: int) -> NDArray[np.float64] | None:
    """Return the trained weights, float64 (P,), that a script keeps in a run with this number of `weights`;
    None if it keeps none.
    """
    found = None if state is None else state.get(TRAINED, state.get(EVALUATED))
    return found.astype(np.float64).reshape(-1) if _are_weights(found, weights) else None


def check_trained(state: Mapping[str, Any], weights: int) -> None:
    """Raise TrainerError if a state has trained weights that are not those of this number of `weights`."""
    if TRAINED in state and not _are_weights(found := state[TRAINED], weights):
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise TrainerError(
            f"{TRAINED!r} of the state must be an array of floats, one for each of the {weights} weights; it"
            f" is {what}"
        )


def _are_weights(found: Any, weights: int) -> TypeGuard[NDArray[Any]]:
    return isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.size == weights


def end_of(state: Mapping[str, ScriptValue] | None) -> str:
    """Return the words on what the trained weights in a state are of; empty if there are none."""
    found = None if state is None else state.get(ENDED)
    return found if isinstance(found, str) else ""


def may_differ(ends: Iterable[tuple[str, Hashable]]) -> bool:
    """Return whether trained weights, of which these are what they are of and what stands for them, differ
    only as those of scripts do that were ended at different evaluations.
    """
    pairs = set(ends)
    words = {ended for ended, _ in pairs}
    return "" not in words and len(words) == len(pairs) and len({each.startswith(OWN) for each in words}) == 1


def of_script(state: ScriptState) -> ScriptState | None:
    """Return a state without what evaluations have added to it; None if there was nothing else."""
    return {name: value for name, value in state.items() if name not in (EVALUATED, ENDED)} or None


def trained_digest(trained: NDArray[np.float64]) -> int:
    """Return the digest of trained weights, of all their bits."""
    return int.from_bytes(hashlib.blake2b(trained.tobytes(), digest_size=8).digest(), "big")


class _Header(Strict):
    values: Annotated[tuple[Value, ...], Field(max_length=VALUES_MAX)]


def pack_state(state: Mapping[str, Any]) -> list[NDArray[np.uint8]]:
    """Return the bytes of a state, piece after piece; large arrays are not copied.

    Values are numpy arrays of plain numbers, ints of 64 bits, floats, texts and bytes-like objects, at most
    4,096 and 1 GiB together. TrainerError with a sentence for anything else.
    """
    if not isinstance(state, Mapping):
        raise TrainerError(f"a state must be a dict of names and values; it is a {type(state).__name__}")
    if len(state) > VALUES_MAX:
        raise TrainerError(f"a state of {len(state)} values; at most {VALUES_MAX} are possible")
    values, arrays = [], []
    for name, value in state.items():
        if not isinstance(name, str) or not 1 <= len(name) <= 200:
            raise TrainerError(f"{name!r:.100} names a value of the state; a name is a text of 1 to 200")
        kind, array = _array_of(name, value)
        values.append((name, kind, array.shape))
        arrays.append(array)
    try:
        header = msgpack.packb({"values": values})
    except UnicodeEncodeError:
        raise TrainerError("a name in the state cannot be written as UTF-8") from None
    if len(header) > HEADER_BYTES_MAX:
        raise TrainerError(f"the names of the state take {len(header)} bytes; use fewer or shorter ones")
    pieces = [np.frombuffer(_LENGTH.pack(len(header)) + header, np.uint8)]
    for array in arrays:
        pieces += [_padding(pieces[-1].size), array.reshape(-1).view(np.uint8)]
    size_bytes = sum(piece.size for piece in pieces)
    if size_bytes > STATE_BYTES_MAX:
        raise TrainerError(f"the state takes {size_bytes} bytes; at most {STATE_BYTES_MAX} are possible")
    return pieces


def unpack_state(contents: NDArray[np.uint8]) -> ScriptState:
    """Return the state that these bytes, (n,), are; arrays and memoryviews in it are views of them.

    TrainerError with a sentence if they are not exactly one state.
    """
    if not _LENGTH.size <= contents.size <= STATE_BYTES_MAX:
        raise TrainerError(f"a state of {contents.size} bytes; {_LENGTH.size} to {STATE_BYTES_MAX} can be")
    (length,) = _LENGTH.unpack(contents[: _LENGTH.size].tobytes())
    begin, end = _LENGTH.size, _LENGTH.size + length
    if end > contents.size or length > HEADER_BYTES_MAX:
        raise TrainerError(f"the header of a state of {contents.size} bytes claims to have {length}")
    fields = unpack_datagram(contents[begin:end].tobytes(), bytes_max=HEADER_BYTES_MAX)
    try:
        values = _Header.model_validate(fields).values
    except ValidationError as error:
        raise TrainerError(f"a malformed state: {describe_fault(error)}") from None
    state: ScriptState = {}
    for name, kind, shape in values:
        begin = end + _padding(end).size
        array, end = _take(contents, begin, name, kind, shape)
        state[name] = _value_of(name, kind, array)
    if len(state) != len(values) or end != contents.size:
        raise TrainerError(f"a state of {contents.size} bytes is not what its header says")
    return state


def read_state(descriptor: int) -> ScriptState:
    """Read a state from the memfd that the daemon hands over; everything in it is the caller's own."""
    state = unpack_state(map_sealed(descriptor, "the script's state"))
    return {name: _copy(value) for name, value in state.items()}


def _array_of(name: str, value: Any) -> tuple[str, NDArray[Any]]:
    """Return the kind of a value and its bytes' array, contiguous."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.name not in ARRAYS or array.ndim > 16:
            raise TrainerError(
                f"value {name!r:.100} of the state is an array of {array.dtype} with {array.ndim} axes;"
                f" possible are {', '.join(ARRAYS)} with at most 16"
            )
        return array.dtype.name, np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(
            array.shape
        )
    try:
        match value:
            case int():
                return "an int", np.array(value, np.int64)
            case float():
                return "a float", np.array(value, np.float64)
            case str():
                return "a text", np.frombuffer(value.encode(), np.uint8)
            case _:
                return "bytes", np.frombuffer(memoryview(value).cast("B"), np.uint8)
    except OverflowError:
        raise TrainerError(
            f"value {name!r:.100} of the state is an int beyond 64 bits: keep it as a text"
        ) from None
    except UnicodeEncodeError:
        raise TrainerError(f"value {name!r:.100} of the state is a text that UTF-8 does not have") from None
    except TypeError:
        raise TrainerError(
            f"value {name!r:.100} of the state is a {type(value).__name__}; possible are numpy arrays, ints,"
            " floats, texts and bytes"
        ) from None


def _take(
    contents: NDArray[np.uint8], begin: int, name: str, kind: str, shape: tuple[int, ...]
) -> tuple[NDArray[Any], int]:
    """Return the array of a value that begins there, and where it ends."""
    dtype = np.dtype(PLAIN.get(kind, kind) if kind in PLAIN or kind in ARRAYS else "V")
    if dtype.kind == "V" or (kind in PLAIN and len(shape) != (dtype.name == "uint8")):
        raise TrainerError(f"value {name!r:.100} of a state has kind {kind!r:.20} and {len(shape)} axes")
    end = begin + math.prod(shape) * dtype.itemsize
    if end > contents.size:
        raise TrainerError(f"value {name!r:.100} of a state reaches beyond its {contents.size} bytes")
    try:
        return contents[begin:end].view(dtype).reshape(shape), end
    except ValueError as error:
        raise TrainerError(f"value {name!r:.100} of a state: {error}") from None


def _value_of(name: str, kind: str, array: NDArray[Any]) -> ScriptValue:
    match kind:
        case "an int":
            return int(array)
        case "a float":
            return float(array)
        case "a text":
            try:
                return array.tobytes().decode()
            except UnicodeDecodeError:
                raise TrainerError(f"value {name!r:.100} of a state is no UTF-8") from None
        case "bytes":
            return array.data
        case _:
            return array


def _copy(value: ScriptValue) -> ScriptValue:
    match value:
        case np.ndarray():
            return value.copy()
        case memoryview():
            return bytes(value)
        case _:
            return value


def _padding(position: int) -> NDArray[np.uint8]:
    return np.zeros(-position % ALIGNMENT, np.uint8)


# ----------------------------------------------------------------------------
# What the training script last gave to be kept: for the host, and for the trainer that comes next.


class KeptScript:
    """The state, None if there is none, and the memfd that holds it; arrays in it are views of that."""

    def __init__(self) -> None:
        self.state: ScriptState | None = None
        self._memory = -1

    @property
    def descriptors(self) -> list[int]:
        """The memfd, for a trainer; none if nothing is kept."""
        return [] if self._memory < 0 else [self._memory]

    def take(self, descriptors: list[int]) -> None:
        """Keep what a trainer handed over: one memfd, or none at all for no state.

        TrainerError, with nothing changed, if it is not exactly a state. The caller closes the descriptors.
        """
        if len(descriptors) > 1:
            raise TrainerError(f"a state comes with one descriptor, not with {len(descriptors)}")
        state = unpack_state(map_sealed(descriptors[0], "a script's state")) if descriptors else None
        memory = os.dup(descriptors[0]) if descriptors else -1
        self.close()
        self.state, self._memory = state, memory

    def put(self, state: Mapping[str, Any] | None) -> None:
        """Keep what an earlier daemon of this node has written down; TrainerError if it is not a state."""
        if state is None:
            self.take([])
            return
        memory = sealed_copy("p2psgd-script", *pack_state(state))
        try:
            self.take([memory])
        finally:
            os.close(memory)

    def close(self) -> None:
        """Close the memfd; views of it live on."""
        descriptors, self._memory = self.descriptors, -1
        for descriptor in descriptors:
            os.close(descriptor)
