"""Compute the sizes of the memory between daemon and trainer, and lay out the outbox entries.

Both sides compute entry sizes from C, how many coordinates a replica has, and the run's mode alone, with the
codec's own bounds.
"""

from __future__ import annotations

import struct

from p2psgd.ipc.ring_buffer import entry_bytes
from p2psgd.wire import codec
from p2psgd.wire.cover import NO_COVER_BYTES
from p2psgd.wire.frames import UPDATE_HEADER_BYTES
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import BUCKETS_MAX, PARTS_MAX

# steps, step, count, learning rate; the payload follows. The rate is that of a gradient for a rule of owners,
# else 0. In rounds one with step 0 and count 0, and no payload, closes the contribution to a round.
OUTBOX_ENTRY = struct.Struct("<QIIf")
OUTBOX_STEPS = struct.Struct("<Q")  # its first field
# In a dense ring: steps, kind, offset, count, bytes of the name; name and shape follow, in UTF-8.
BUCKET_ENTRY = struct.Struct("<QIIII")
NAME_BYTES_MAX = 200  # and as many of a shape: what a RING_BUCKET takes
DENSE_NUMBERS_MIN = 1 << 18  # a dense ring's segments hold so many also in a run of few weights

RESIDUAL_PARTS = (
    3  # float32[P] each: a send reads one half and writes the other; a copy kept for a checkpoint
)
INBOX_ENTRIES = 8  # of the largest size; of usual updates, a thousandth of the weights, it is hundreds
OUTBOX_ENTRIES = 4
TERNARY_DIGITS = 36  # of a number: 16 updates of 2^20 quanta and one for each lower digit (client/ternary.py)
TERNARY_BYTES = 4  # of an outbox for each coordinate, where contributions are ternary: a whole gradient
SEND_SHARE = 16  # a send holds at most a sixteenth of the coordinates, or one full update if that is more


def send_indices_max(coordinates: int) -> int:
    """Return the most indices of one send, which makes several updates where one does not hold them: all
    coordinates up to 2^18, then 2^18, from 2^22 coordinates on a sixteenth of them.
    """
    return max(codec.indices_max(coordinates), coordinates // SEND_SHARE)


def contribution_indices_max(coordinates: int, mode: Mode) -> int:
    """Return the most indices of one contribution to a round. A ternary one has most weights, and those in
    full precision once for each binary digit.
    """
    if mode.ternary:
        return coordinates * TERNARY_DIGITS
    return send_indices_max(coordinates) + PARTS_MAX  # one send (client/compute.py)


def inbox_entry_bytes_max(coordinates: int) -> int:
    """Return the length of the longest inbox entry: the body of an UPDATE frame."""
    return UPDATE_HEADER_BYTES + NO_COVER_BYTES + codec.payload_bytes_max(codec.indices_max(coordinates))


def outbox_entry_bytes(coordinates: int, mode: Mode) -> tuple[int, int]:
    """Return the lengths of the shortest and of the longest outbox entry."""
    if mode.dense:
        return BUCKET_ENTRY.size, BUCKET_ENTRY.size + 2 * NAME_BYTES_MAX
    longest = OUTBOX_ENTRY.size + codec.payload_bytes_max(codec.indices_max(coordinates))
    return OUTBOX_ENTRY.size + (not mode.rounds), longest


def outbox_bytes_min(coordinates: int, mode: Mode) -> int:
    """Return the smallest outbox that any one update fits into, with the entry that closes a contribution."""
    closing = entry_bytes(OUTBOX_ENTRY.size) if mode.rounds else 0
    return entry_bytes(outbox_entry_bytes(coordinates, mode)[1]) + closing


def dense_numbers(weights: int) -> int:
    """Return M: how many float32 each part of a dense ring's memory holds."""
    return max(weights, DENSE_NUMBERS_MIN)


def inbox_bytes(coordinates: int, mode: Mode) -> int:
    """Return the capacity of an inbox: a power of two with room for 8 of the longest entries, and for one of
    the largest sends; of usual sends, a hundredth of the weights, that is twenty. Where contributions are
    ternary it holds what owners publish in a round, a byte for each coordinate.
    """
    entries = max(INBOX_ENTRIES, _full_updates(coordinates))
    ternary = mode.ternary * coordinates
    return _power_of_two(ternary + entries * entry_bytes(inbox_entry_bytes_max(coordinates)))


def outbox_bytes(coordinates: int, mode: Mode) -> int:
    """Return the capacity of an outbox: a power of two with room for 4 of the longest entries, and for any
    one send.

    In a dense ring that is the most buckets that a round may have. Where contributions are ternary, each has
    all weights: those in three values take a fifth of a byte each, those in full precision about 3.

    A send has as many updates as its indices fill, and beyond that one for each of its thresholds,
    PARTS_MAX together. Each of these may hold one index more (client/compute.py). An entry of one
    index takes at most 72 bytes: 8 of prefix, 20 of entry header, 43 of payload, 1 of padding; what further
    indices add to it they add to a full entry as well. So the full entries and 72 bytes for each threshold
    are enough. The thresholds make at most 294,912 bytes, which is more than 4 of the longest entries only
    below 20,000 coordinates: there the outbox has 512 KiB at most. The full entries take a fifth of a byte
    for each coordinate.
    """
    longest = outbox_bytes_min(coordinates, mode)
    if mode.dense:
        return _power_of_two(BUCKETS_MAX * longest)
    shortest = entry_bytes(OUTBOX_ENTRY.size + codec.payload_bytes_max(1))
    one_send = _full_updates(coordinates) * longest + min(coordinates, PARTS_MAX) * shortest
    ternary = mode.ternary * (TERNARY_BYTES * coordinates + TERNARY_DIGITS * shortest)
    return _power_of_two(ternary + max(OUTBOX_ENTRIES * longest, one_send))


def _full_updates(coordinates: int) -> int:
    """Return how many updates the indices of the largest send fill."""
    return -(-send_indices_max(coordinates) // codec.indices_max(coordinates))


def _power_of_two(size_bytes: int) -> int:
    return 1 << (size_bytes - 1).bit_length()
