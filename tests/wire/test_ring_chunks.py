"""The check of a chunk of a ring: no changed byte goes through, and what is known is not read again."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import (
    RING_CHUNK_BYTES,
    RingChunkHeader,
    check_ring_chunk,
    pack_ring_chunk,
    parse_ring_chunk,
)

HEADER = RingChunkHeader(view=3, generation=2, round=7, bucket=1, hop=5, offset=2**33, contributors=4)
NUMBERS = np.arange(9, dtype=np.float32).tobytes()


def test_a_chunk_is_found_as_it_was_packed() -> None:
    body = pack_ring_chunk(HEADER, NUMBERS) + NUMBERS
    header, numbers = parse_ring_chunk(body)
    assert header == HEADER
    assert bytes(numbers) == NUMBERS
    assert check_ring_chunk(body) == codec.crc32c(NUMBERS)


def test_whoever_knows_the_check_of_the_numbers_need_not_read_them() -> None:
    check = codec.crc32c(NUMBERS)
    assert pack_ring_chunk(HEADER, b"not looked at", check) == pack_ring_chunk(HEADER, NUMBERS)
    body = pack_ring_chunk(HEADER, NUMBERS) + b"not looked at"
    assert check_ring_chunk(body, check) == check


@pytest.mark.parametrize("known", [False, True])
def test_a_changed_byte_is_found(known: bool) -> None:
    body = bytearray(pack_ring_chunk(HEADER, NUMBERS) + NUMBERS)
    for place in range(len(body)):
        body[place] ^= 0x10
        check = codec.crc32c(body[RING_CHUNK_BYTES:]) if known else None
        with pytest.raises(PeerError, match="checksum"):
            check_ring_chunk(body, check)
        body[place] ^= 0x10
    check_ring_chunk(body)


def test_a_chunk_without_numbers_is_refused() -> None:
    with pytest.raises(PeerError, match="holds no numbers"):
        parse_ring_chunk(pack_ring_chunk(HEADER, b""))
