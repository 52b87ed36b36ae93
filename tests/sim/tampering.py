"""What a faulty network does to a frame on its way: pieces of it, in the order of their arrival."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.ring_messages import RING_UPDATE_BYTES
from p2psgd.wire.update import pack_update, parse_update
from tests.sim.faults import Duplicated, FlippedBit, Forged, Lost, Reset, Swapped, Tampering

BROKEN: Final = b""  # in place of a piece: here the connection breaks
TAG_BYTES: Final = (
    16  # view and generation: what is not of this generation is dropped before anything is checked
)
_COUNT: Final = slice(PREFIX.size + 44, PREFIX.size + 48)  # of an update: one that is only a cover has 0
_REPEATABLE: Final = frozenset(  # a greeting or a piece of a snapshot that comes twice is refused
    FrameType
) - {
    *(FrameType.HELLO, FrameType.WELCOME, FrameType.REJECT, FrameType.SNAPSHOT_META),
    *(FrameType.SNAPSHOT_COVER, FrameType.SNAPSHOT_CHUNK, FrameType.SNAPSHOT_TAIL, FrameType.SNAPSHOT_END),
    *(FrameType.RING_BEGIN, FrameType.RING_UPDATE, FrameType.RING_BUCKET, FrameType.RING_CHUNK),
}
_BEFORE_SHARE: Final = PREFIX.size + RING_UPDATE_BYTES
_UNHARMED: Final[
    dict[int, int]
] = {  # bytes of a frame in which no bit flips: TCP's word is taken for them, as for a STATUS
    FrameType.RING_UPDATE: _BEFORE_SHARE,
    FrameType.RING_CHUNK: PREFIX.size + TAG_BYTES,
}


class Tamperer:
    """Holds the tamperings that wait for a frame, in one direction between two nodes."""

    def __init__(self, weights: int, tampered: Callable[[Tampering], None]) -> None:
        self._weights = weights
        self._tampered = tampered  # told as each is done
        self._waiting: list[Tampering] = []
        self._copies = 0

    def add(self, tampering: Tampering) -> None:
        """Do this to the next frame that it fits."""
        self._waiting.append(tampering)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._copies)

    def clear(self) -> None:
        """All is healed."""
        self._waiting.clear()
        self._copies = 0

    def pass_on(self, frame: bytes, held: list[bytes]) -> list[bytes]:
        """What arrives for `frame`; `held` is what this connection holds back, and is changed."""
        released, held[:] = [*held], []
        for tampering in self._waiting:
            if self._fits(tampering, frame):
                self._waiting.remove(tampering)
                self._tampered(tampering)
                return [*self._tamper(tampering, frame, held), *released]
        if self._copies and frame[4] in _REPEATABLE:
            self._copies -= 1
            return [frame, frame, *released]
        return [frame, *released]

    @staticmethod
    def _fits(tampering: Tampering, frame: bytes) -> bool:
        match tampering:
            case Reset():
                return True
            case Duplicated():
                return frame[4] in _REPEATABLE
            case FlippedBit() | Forged() if frame[4] == FrameType.RING_UPDATE:
                return len(frame) > _BEFORE_SHARE
            case FlippedBit() if frame[4] == FrameType.RING_CHUNK:
                return True
            case Forged():
                return frame[4] == FrameType.UPDATE and any(frame[_COUNT])
            case _:
                return frame[4] == FrameType.UPDATE

    def _tamper(self, tampering: Tampering, frame: bytes, held: list[bytes]) -> list[bytes]:
        match tampering:
            case Reset():
                return [frame[: len(frame) // 2], BROKEN]
            case Duplicated():
                self._copies = tampering.frames - 1
                return [frame, frame]
            case Swapped():
                held.append(frame)
                return []
            case Lost():
                return []
            case Forged():
                start = _UNHARMED.get(frame[4], PREFIX.size)
                header, payload = parse_update(frame[start:], self._weights)
                forged = dataclasses.replace(header, magnitude=header.magnitude + 1)
                body = frame[PREFIX.size : start] + pack_update(forged, bytes(payload))
                return [pack_frame(FrameType(frame[4]), body)]
            case FlippedBit():
                harmed = bytearray(frame)
                start = _UNHARMED.get(frame[4], 0)
                bit = 8 * start + int(8 * (len(frame) - start) * tampering.place)
                harmed[bit // 8] ^= 1 << bit % 8
                return [bytes(harmed)]
