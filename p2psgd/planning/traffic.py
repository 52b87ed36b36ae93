"""How many bytes travel: what an update takes coded, in its frame, and on a link with all headers of TCP."""

from __future__ import annotations

import math
from typing import Final

from p2psgd.core.ring.chunk_frames import segment_numbers
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.ring import RING_CHUNK_BYTES, RING_UPDATE_BYTES

SEGMENT_BYTES: Final = 1448  # of an Ethernet packet of 1,500 bytes, less IPv4, TCP and its timestamps
PACKET_BYTES: Final = 66  # those headers, and Ethernet's
FIELD_BYTES: Final = 88  # of a STATUS beside its tables (SPEC.md, section 5)
FRONTIER_ROW_BYTES, CONFIRMED_ROW_BYTES = 64, 24
ACKNOWLEDGED_UPDATES, ACKNOWLEDGED_BYTES = 64, 256 * 1024  # of a peer, and it is told by a STATUS (section 9)
STATUSES_IN_PATIENCE: Final = 5
TICKS_TO_STATUS: Final = 5  # a daemon looks who is due so often until each is
FLOAT_BYTES: Final = 4
# Back-propagation gives the last layers' gradient after the forward pass, a third of computing, and the
# first ones' at its end: as if the net had three tensors, each given once its third of computing is done.
DENSE_TENSORS: Final = 3


def bits_per_index(density: float) -> float:
    """Of an update of many weights, sign included, where all are equally likely to be in it.

    Gaps between indices are geometric then. The parameter k of Golomb and Rice costs k bits, one to end the
    quotient and the quotient's mean; each block of 512 has one byte of header and half a byte to fill up.
    Real updates take up to 6 % less: their density and signs are not the same everywhere.
    """
    absent = 1 - density
    best = min(k + 1 + (absent ** (1 << k)) / (1 - absent ** (1 << k)) for k in range(codec.RICE_MAX + 1))
    return best + 1 + 12 / codec.BLOCK_GAPS


def update_bytes(weights: int, indices: int) -> int:
    """An UPDATE frame of so many indices."""
    coded = math.ceil(indices * bits_per_index(indices / weights) / 8)
    dense = 1 + math.ceil(weights / 5)  # five weights to a byte, where that is shorter
    return PREFIX.size + UPDATE_HEADER_BYTES + min(coded, dense)


def ring_update_bytes(weights: int, indices: int) -> int:
    """The same as RING_UPDATE."""
    return update_bytes(weights, indices) + RING_UPDATE_BYTES


def status_bytes(nodes: int) -> int:
    """A STATUS frame in a run of so many, each of which has started once."""
    return PREFIX.size + FIELD_BYTES + FRONTIER_ROW_BYTES * nodes + CONFIRMED_ROW_BYTES * (nodes - 1)


def statuses_per_s(patience_s: float) -> float:
    """To each peer, as sign of life."""
    return STATUSES_IN_PATIENCE / patience_s


def statuses_per_update(frame_bytes: int) -> float:
    """To a peer for each of its updates, as acknowledgement."""
    return max(1 / ACKNOWLEDGED_UPDATES, frame_bytes / ACKNOWLEDGED_BYTES)


def on_link(frame_bytes: int) -> float:
    """What a frame takes of a link: with the headers of its packets, and, as much comes back as goes out,
    those of one acknowledgement for every two packets of the other way.
    """
    packets = math.ceil(frame_bytes / SEGMENT_BYTES)
    return frame_bytes + (packets + math.ceil(packets / 2)) * PACKET_BYTES


def dense_bytes(weights: int, nodes: int) -> float:
    """What a node sends for a round of whole float32 gradients ([Baidu ring 2017]), frames included."""
    chunk_header = PREFIX.size + RING_CHUNK_BYTES
    return 2 * (nodes - 1) / nodes * weights * FLOAT_BYTES + dense_chunks(weights, nodes) * chunk_header


def dense_chunks(weights: int, nodes: int) -> int:
    """In how many frames: each chunk of a tensor is cut so that sending and receiving overlap."""
    tensor = weights // DENSE_TENSORS
    chunk = tensor / nodes
    return DENSE_TENSORS * 2 * (nodes - 1) * math.ceil(chunk / segment_numbers(tensor, nodes))


def stream_on_link(byte_count: float) -> float:
    """What many bytes at once take of a link: an acknowledgement may answer many packets then."""
    return byte_count * (1 + PACKET_BYTES / SEGMENT_BYTES)
