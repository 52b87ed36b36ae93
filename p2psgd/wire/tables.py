"""The packed tables that travel in control messages as one `bin` each: rows of little-endian u64.

A table is what MessagePack arrays would be, without the lists of objects that hostile bytes could claim. Rows
ascend strictly by their first columns, so a table says each thing once and equal tables are equal bytes.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from p2psgd.errors import PeerError

ORIGINS_MAX: Final = 1024  # origins a run may see
MEMBERS_MAX: Final = 1024  # members of a view, and as many forbidden nodes
U64_MAX: Final = 2**64 - 1

ROW_BYTES: Final = 64
CONFIRMED_BYTES: Final = 24
MEMBER_BYTES: Final = 24
NODE_BYTES: Final = 8


class FrontierRow(NamedTuple):
    """One origin's line in a frontier.

    `sequence` is the last contiguous update applied, `digest` the running digest there. `floor`: up to here
    the sender's log holds none. `durable`: up to here they are in its latest checkpoint. `least`: up to here
    all members listed in the STATUS's `confirmed`, and the sender, have applied them. `mini_batch`: the
    origin's count of training steps by then. The last four are at most what they belong to and may be 0.
    """

    node: int
    incarnation: int
    sequence: int
    digest: int
    floor: int = 0
    durable: int = 0
    least: int = 0
    mini_batch: int = 0


class MemberRow(NamedTuple):
    """A member of a view, and the number of the view since which this life has been one without a break."""

    node: int
    incarnation: int
    since: int


class ConfirmedRow(NamedTuple):
    """A life that the sender hears itself. `view`: the latest that it has told, if it is a member and the
    sender's frontier is at or above all its floors; else 0, and `least` does not hold for it.
    """

    node: int
    incarnation: int
    view: int


_ROW: Final = struct.Struct("<QQQQQQQQ")
_CONFIRMED: Final = struct.Struct("<QQQ")
_MEMBER: Final = struct.Struct("<QQQ")
_NODE: Final = struct.Struct("<Q")


def pack_frontier(rows: list[FrontierRow]) -> bytes:
    """The rows, sorted by node and incarnation, 64 bytes each."""
    return b"".join(_ROW.pack(*row) for row in sorted(rows))


def parse_frontier(table: bytes) -> list[FrontierRow]:
    """The rows of a packed frontier; PeerError unless whole, strictly ascending by origin, each with a
    sequence of at least 1, and no floor, durable or least beyond it.
    """
    rows = [FrontierRow._make(row) for row in unpack_table(_ROW, table, keys=2, what="frontier")]
    for _, _, sequence, _, floor, durable, least, _ in rows:
        if sequence == 0:
            raise PeerError("message", "a frontier names an origin of which nothing was applied")
        if floor > sequence or durable > sequence or least > sequence:
            raise PeerError("message", "a frontier's row has a floor or acknowledgement beyond its sequence")
    return rows


def pack_confirmed(rows: list[ConfirmedRow]) -> bytes:
    """The rows, sorted, 24 bytes each."""
    return b"".join(_CONFIRMED.pack(*row) for row in sorted(rows))


def parse_confirmed(table: bytes) -> list[ConfirmedRow]:
    """The rows; PeerError unless whole and strictly ascending by node."""
    rows = unpack_table(_CONFIRMED, table, keys=1, what="table of confirmed views")
    return [ConfirmedRow._make(row) for row in rows]


def pack_members(members: Iterable[MemberRow]) -> bytes:
    """The rows, sorted, 24 bytes each."""
    return b"".join(_MEMBER.pack(*member) for member in sorted(members))


def parse_members(table: bytes) -> list[MemberRow]:
    """The rows; PeerError unless whole and strictly ascending by node."""
    return [MemberRow._make(row) for row in unpack_table(_MEMBER, table, keys=1, what="list of members")]


def pack_nodes(nodes: Iterable[int]) -> bytes:
    """Node ids, sorted, 8 bytes each."""
    return b"".join(_NODE.pack(node) for node in sorted(nodes))


def parse_nodes(table: bytes) -> list[int]:
    """The ids; PeerError unless whole and strictly ascending."""
    return [row[0] for row in unpack_table(_NODE, table, keys=1, what="list of nodes")]


def pack_order(nodes: Iterable[int]) -> bytes:
    """Node ids in the order given, 8 bytes each."""
    return b"".join(_NODE.pack(node) for node in nodes)


def parse_order(table: bytes) -> tuple[int, ...]:
    """The ids; PeerError unless whole and each there once."""
    if len(table) % _NODE.size:
        words = f"an order of {len(table)} bytes is not a multiple of {_NODE.size}"
        raise PeerError("message", words)
    nodes = tuple(node for (node,) in _NODE.iter_unpack(table))
    if len(set(nodes)) < len(nodes):
        raise PeerError("message", "an order names a node twice")
    return nodes


def unpack_table(row: struct.Struct, table: bytes, *, keys: int, what: str) -> list[tuple[Any, ...]]:
    """The rows; PeerError unless whole and strictly ascending by their first `keys` columns."""
    if len(table) % row.size:
        raise PeerError("message", f"a {what} of {len(table)} bytes is not a multiple of {row.size}")
    rows = list(row.iter_unpack(table))
    named = [each[:keys] for each in rows]
    if any(map(operator.ge, named, named[1:])):
        raise PeerError("message", f"the rows of a {what} are not in ascending order")
    return rows
