"""MessagePack that asks for as much memory as it can, for its length."""

from __future__ import annotations

from collections.abc import Iterator


def bombs(length: int, keys: int) -> Iterator[bytes]:
    """Bodies of up to `length` bytes; the maps nested in some of them have `keys` keys."""
    inner = bytes([0x80 | keys, 0xA0, 1]) + b"".join(b"\xa1" + bytes([each, 1]) for each in range(1, keys))
    for unit in (
        bytes([0x80 | keys]) + (b"\xa0" + inner) * (keys - 1) + b"\xa0",
        b"\x91",
        b"\xdc\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xde\x01\x00\xa0",
        b"\xde\xff\xff\xa0",
        b"\xdf\xff\xff\xff\xff\xa0",
        b"\x81\xa0",
        bytes([0x80 | keys]) + b"\xa0\x80" * (keys - 1) + b"\xa0",
        bytes([0x80 | keys]) + b"\xa0\x01" * (keys - 1) + b"\xa0",
        b"\x8f" + b"\xa0\x80" * 14 + b"\xa0",
    ):
        yield (unit * (length // len(unit) + 1))[:length]
    yield b"\xde\x01\x00" + (b"\xa1a\xde\x01\x00" + b"\xa1a\x80" * 256) * (length // 774)
    for header in (b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05"):
        yield b"\x81\xa8sequence" + header
        yield header
    yield b"\x81\xa8sequence\xdb\x03\x93\x87\x00"  # a string of 60 MB
    yield b"\x81\xa8sequence\xc6" + (length - 15).to_bytes(4, "big") + bytes(length - 15)
