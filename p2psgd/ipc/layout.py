"""How large the memory between daemon and trainer is, and what an outbox entry holds.

Both sides compute entry sizes from P alone, with the codec's own bounds.
"""

from __future__ import annotations

import struct

from p2psgd.ipc.ring import entry_bytes
from p2psgd.wire import codec
from p2psgd.wire.frames import UPDATE_HEADER_BYTES

OUTBOX_ENTRY = struct.Struct("<QII")  # mini_batch, step, count; the payload follows

RESIDUAL_HALVES = 2  # float32[P] each: a send reads one and writes the other, 8 bytes a weight in all
INBOX_ENTRIES = 8  # of the largest size; of usual updates, a thousandth of the weights, it is hundreds
OUTBOX_ENTRIES = 4


def inbox_entry_bytes_max(weights: int) -> int:
    """Length of the longest inbox entry: the body of an UPDATE frame."""
    return UPDATE_HEADER_BYTES + codec.payload_bytes_max(codec.indices_max(weights))


def outbox_entry_bytes_max(weights: int) -> int:
    """Length of the longest outbox entry."""
    return OUTBOX_ENTRY.size + codec.payload_bytes_max(codec.indices_max(weights))


def inbox_bytes(weights: int) -> int:
    """Capacity of an inbox: a power of two with room for 8 of the longest entries."""
    return _power_of_two(INBOX_ENTRIES * entry_bytes(inbox_entry_bytes_max(weights)))


def outbox_bytes(weights: int) -> int:
    """Capacity of an outbox: a power of two with room for 4 of the longest entries."""
    return _power_of_two(OUTBOX_ENTRIES * entry_bytes(outbox_entry_bytes_max(weights)))


def _power_of_two(size_bytes: int) -> int:
    return 1 << (size_bytes - 1).bit_length()
