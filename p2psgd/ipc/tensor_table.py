"""The names and shapes of a run's tensors as they pass the control socket: a flat table, compressed.

Names of a model's parameters repeat each other: 5,000 of them shrink to a tenth, and fit one datagram. The
table is not MessagePack, in which nested arrays let few bytes claim much memory. Names and sizes are
judged by the model of the message that they are in (protocol.py).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import Tensors

TENSORS_MAX: Final = 16_384
TABLE_BYTES_MAX: Final = 1024 * 1024  # before it is compressed: 64 bytes for each of the most tensors
RANK_MAX: Final = 16

_HEAD: Final = struct.Struct("<HB")  # bytes of the name, rank; the name in UTF-8 and as many sizes follow
_SIZE: Final = struct.Struct("<I")


def pack_tensors(tensors: Tensors) -> bytes:
    """Return the compressed table; TrainerError if it is longer than a table may be."""
    rows = []
    for name, shape in tensors:
        text = name.encode()
        rows.append(_HEAD.pack(len(text), len(shape)) + text + b"".join(map(_SIZE.pack, shape)))
    table = b"".join(rows)
    if len(tensors) > TENSORS_MAX or len(table) > TABLE_BYTES_MAX:
        raise TrainerError(
            f"names and shapes of {len(tensors)} tensors take {len(table)} bytes; at most {TENSORS_MAX}"
            f" tensors and {TABLE_BYTES_MAX} bytes are possible: use fewer tensors or shorter names"
        )
    return zlib.compress(table)


def parse_tensors(packed: bytes) -> Tensors:
    """Return the tensors of a table; ValueError with a few words if it is not exactly one."""
    unpack = zlib.decompressobj()
    try:
        table = unpack.decompress(packed, TABLE_BYTES_MAX + 1)
    except zlib.error:
        raise ValueError("a table of tensors that does not decompress") from None
    if len(table) > TABLE_BYTES_MAX or not unpack.eof or unpack.unused_data:
        raise ValueError(f"a table of tensors that is not whole, or longer than {TABLE_BYTES_MAX} bytes")
    tensors: list[tuple[str, tuple[int, ...]]] = []
    place = 0
    while place < len(table):
        if len(tensors) == TENSORS_MAX:
            raise ValueError(f"more than {TENSORS_MAX} tensors")
        try:
            name_bytes, rank = _HEAD.unpack_from(table, place)
            begin = place + _HEAD.size
            sizes = begin + name_bytes
            place = sizes + rank * _SIZE.size
            if rank > RANK_MAX or place > len(table):
                raise ValueError(f"tensor {len(tensors)} of a table reaches beyond it")
            shape = tuple(size for (size,) in _SIZE.iter_unpack(table[sizes:place]))
            tensors.append((table[begin:sizes].decode(), shape))
        except (struct.error, UnicodeDecodeError):
            raise ValueError(f"tensor {len(tensors)} of a table is cut off or not UTF-8") from None
    return tuple(tensors)
