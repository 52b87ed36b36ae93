"""Compute the sizes of the memory between daemon and trainer, and lay out the outbox entries.

Both sides compute entry sizes from C, how many coordinates a replica has, and the run's mode alone, with the
codec's own bounds.
"""

from __future__ import annotations

import struct

from p2psgd.ipc.protocol import TENSORS_MAX
from p2psgd.ipc.ring_buffer import entry_bytes
from p2psgd.wire import codec
from p2psgd.wire.frames import UPDATE_HEADER_BYTES
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import BUCKETS_MAX

# steps, step, count; the payload follows. In a sparse ring one with step 0 and count 0, and no payload,
# closes the node's contribution to a round.
OUTBOX_ENTRY = struct.Struct("<QII")
# In a dense ring: steps, kind, offset, count, bytes of the name; name and shape follow, in UTF-8.
BUCKET_ENTRY = struct.Struct("<QIIII")
NAME_BYTES_MAX = 200  # and as many of a shape: what a RING_BUCKET takes
DENSE_NUMBERS_MIN = 1 << 18  # a dense ring's segments hold so many also in a run of few weights

RESIDUAL_PARTS = (
    3  # float32[P] each: a send reads one half and writes the other; a copy kept for a checkpoint
)
INBOX_ENTRIES = 8  # of the largest size; of usual updates, a thousandth of the weights, it is hundreds
OUTBOX_ENTRIES = 4


def inbox_entry_bytes_max(coordinates: int) -> int:
    """Return the length of the longest inbox entry: the body of an UPDATE frame."""
    return UPDATE_HEADER_BYTES + codec.payload_bytes_max(codec.indices_max(coordinates))


def outbox_entry_bytes(coordinates: int, mode: Mode) -> tuple[int, int]:
    """Return the lengths of the shortest and of the longest outbox entry."""
    if mode.dense:
        return BUCKET_ENTRY.size, BUCKET_ENTRY.size + 2 * NAME_BYTES_MAX
    longest = OUTBOX_ENTRY.size + codec.payload_bytes_max(codec.indices_max(coordinates))
    return OUTBOX_ENTRY.size + (not mode.ring), longest


def outbox_bytes_min(coordinates: int, mode: Mode) -> int:
    """Return the smallest outbox that any one update fits into, with the entry that closes a contribution."""
    closing = entry_bytes(OUTBOX_ENTRY.size) if mode.ring else 0
    return entry_bytes(outbox_entry_bytes(coordinates, mode)[1]) + closing


def dense_numbers(weights: int) -> int:
    """Return M: how many float32 each part of a dense ring's memory holds."""
    return max(weights, DENSE_NUMBERS_MIN)


def inbox_bytes(coordinates: int) -> int:
    """Return the capacity of an inbox: a power of two with room for 8 of the longest entries."""
    return _power_of_two(INBOX_ENTRIES * entry_bytes(inbox_entry_bytes_max(coordinates)))


def outbox_bytes(coordinates: int, mode: Mode) -> int:
    """Return the capacity of an outbox: a power of two with room for 4 of the longest entries, and for any
    one send.

    In a dense ring that is the most buckets that a round may have.

    A send with a step for each tensor has up to min(coordinates, 4,096) entries. They hold together at most
    as many indices as the longest entry, but each of them may hold one (client/compute.py). An entry of one
    index takes at most 72 bytes: 8 of prefix, 16 of entry header, 43 of payload, 5 of padding; what further
    indices add to it they add to the longest entry as well. So the longest entry and 72 bytes for each tensor
    are enough: at most 864,168 + 4,096 * 72 = 1,159,080 bytes. That is more than 4 of the longest entries
    only below 20,000 coordinates, and makes the outbox 512 KiB there at most.
    """
    longest = outbox_bytes_min(coordinates, mode)
    if mode.dense:
        return _power_of_two(BUCKETS_MAX * longest)
    shortest = entry_bytes(OUTBOX_ENTRY.size + codec.payload_bytes_max(1))
    one_send = longest + min(coordinates, TENSORS_MAX) * shortest
    return _power_of_two(max(OUTBOX_ENTRIES * longest, one_send))


def _power_of_two(size_bytes: int) -> int:
    return 1 << (size_bytes - 1).bit_length()
