"""Numbers that a mesh sends from where they lie, over real sockets on loopback, on both event loops."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import FrameType, pack_frame
from tests.conftest import LoopFactory
from tests.net.parties import linked_parties, run, stall, until


def chunk_head(numbers: memoryview) -> bytes:
    """What stands before these numbers in a frame whose body has four bytes of a header."""
    body = bytes(4) + bytes(numbers)
    return pack_frame(FrameType.RING_CHUNK, body)[: -len(numbers)]


def test_numbers_go_out_behind_their_head_also_to_a_peer_that_reads_nothing_for_a_while(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        async with linked_parties() as (fast, slow):
            stalled, link = stall(slow, 1), fast.mesh.links[2].connection
            pieces: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
            before = link.bytes_sent
            while link.writable:
                pieces.append(np.full(50_000, len(pieces) % 256, np.uint8))
                fast.mesh.send_floats(slow.origin, chunk_head(pieces[-1].data), pieces[-1].data)
                await asyncio.sleep(0)
            assert link.bytes_sent - before == sum(
                len(chunk_head(piece.data)) + len(piece) for piece in pieces
            )
            stalled.resume_reading()
            await until(lambda: len(slow.host.frames) == len(pieces))
            assert [body[4:] for _, _, body in slow.host.frames] == [piece.tobytes() for piece in pieces]

    run(loop_factory, scenario)


def test_numbers_that_were_not_sent_are_let_go_with_their_link(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with linked_parties() as (fast, slow):
            stall(slow, 1)
            link = fast.mesh.links[2].connection
            memory = bytearray(50_000_000)
            with memoryview(memory) as numbers:
                fast.mesh.send_floats(slow.origin, bytes(20), numbers)
            await asyncio.sleep(0.01)
            fast.mesh.send_floats(slow.origin, b"", memoryview(b""))  # nothing is nothing
            link.abort("the test ends it")
            await until(lambda: 2 not in fast.host.open)
            await until(lambda: is_free(memory))
            fast.mesh.send_floats(Origin(9, 9), b"head", memoryview(b"numbers"))  # to nobody

    run(loop_factory, scenario)


def is_free(memory: bytearray) -> bool:
    """Nobody looks at it any more."""
    try:
        memory.append(0)
    except BufferError:
        return False
    return True
