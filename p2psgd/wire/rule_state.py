"""RULE_STATE frames: the state that an owner's rule keeps for some weights, on its way to another node."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.cover import NUMBER_MAX
from p2psgd.wire.frames import RULE_STATE_ARRAYS_MAX, RULE_STATE_HEADER_BYTES, RULE_STATE_WEIGHTS_MAX
from p2psgd.wire.reject import PeerError, RejectCode

_HEADER: Final = struct.Struct("<IIQI")
_CHECKSUM: Final = struct.Struct("<I")
assert _HEADER.size + _CHECKSUM.size == RULE_STATE_HEADER_BYTES


class Kind(enum.IntEnum):
    """The purpose of a state on its way; a number on the wire."""

    MOVED = 0  # the sender owned these weights, and keeps nothing of it
    COPY = 1  # to be kept in case that the sender dies
    SPARE = 2  # a copy of a node that is gone, or from a checkpoint: for owners who have got nothing else


@dataclass(frozen=True, slots=True, eq=False)
class RuleState:
    """A rule's state of the weights from `begin` on, after `steps` steps: `arrays` float32 (arrays, n)."""

    begin: int
    steps: int
    arrays: NDArray[np.float32]
    kind: Kind = Kind.MOVED

    @property
    def range(self) -> tuple[int, int]:
        """Return the first of its weights, and the one after the last."""
        return self.begin, self.begin + self.arrays.shape[1]

    def part(self, begin: int, end: int) -> RuleState:
        """Return that of some of its weights, as a view."""
        arrays = self.arrays[:, begin - self.begin : end - self.begin]
        return RuleState(begin, self.steps, arrays, self.kind)


def pack_rule_state(state: RuleState) -> bytes:
    """Build the body of a RULE_STATE frame."""
    _, weights = state.arrays.shape
    checked = _HEADER.pack(state.begin, weights, state.steps, state.kind)
    payload = np.ascontiguousarray(state.arrays, "<f4").tobytes()
    checksum = codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0))
    return b"".join((checked, _CHECKSUM.pack(checksum), payload))


def parse_rule_state(body: bytes | bytearray, weights: int, arrays: int) -> RuleState:
    """Return the state in a run of `weights` weights, whose rule keeps `arrays` of them; PeerError unless all
    of it is right.
    """
    if len(body) < RULE_STATE_HEADER_BYTES:
        raise _refusal(f"{len(body)} bytes are shorter than its header")
    begin, count, steps, kind = _HEADER.unpack_from(body)
    (checksum,) = _CHECKSUM.unpack_from(body, _HEADER.size)
    checked, payload = memoryview(body)[: _HEADER.size], memoryview(body)[RULE_STATE_HEADER_BYTES:]
    if codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0)) != checksum:
        raise PeerError(RejectCode.CHECKSUM, "the checksum of a rule's state does not match its bytes")
    fits = 1 <= count <= RULE_STATE_WEIGHTS_MAX and begin + count <= weights
    if not fits or steps > NUMBER_MAX or kind > Kind.SPARE or not 1 <= arrays <= RULE_STATE_ARRAYS_MAX:
        raise _refusal(f"{count} weights from {begin} on, after {steps} steps, of kind {kind}")
    if len(payload) != 4 * arrays * count:
        raise _refusal(f"{len(payload)} bytes for {arrays} arrays of {count} weights")
    values = np.frombuffer(payload, "<f4").astype(np.float32).reshape(arrays, count)
    if not np.isfinite(values).all():
        raise _refusal("a number in it is not finite")
    return RuleState(begin, steps, values, Kind(kind))


def split_rule_states(packed: bytes, weights: int, arrays: int) -> list[bytes]:
    """Return the bodies that were put together one after the other; PeerError unless all of each is right."""
    bodies, at = [], 0
    while at < len(packed):
        count = _HEADER.unpack_from(packed, at)[1] if len(packed) - at >= _HEADER.size else 0
        end = at + RULE_STATE_HEADER_BYTES + 4 * arrays * count
        bodies.append(packed[at:end])
        parse_rule_state(bodies[-1], weights, arrays)
        at = end
    return bodies


def _refusal(words: str) -> PeerError:
    return PeerError(RejectCode.RULE_STATE, f"a rule's state is refused: {words}")
