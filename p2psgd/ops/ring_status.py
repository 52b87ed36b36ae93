"""What a node's status says about its ring: the round, the order, and who is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from p2psgd.core.node_id import name_node
from p2psgd.core.replica import Replica
from p2psgd.ops.ring_text import WAIT_SAID_S
from p2psgd.wire.mode import parse_mode

NAMED_MAX: Final = 128  # members listed one by one: a status must fit into one datagram


def describe_ring(replica: Replica | None, now: float) -> dict[str, Any] | None:
    """None in asynchronous mode, and before the run is known. `round` is the last complete one; `order` the
    members of the last attempt, around the ring, and `order_by` what that order goes by, "id" also if it
    should have been measured and nothing was; `since_s` tells how long ago that round was completed, or the
    attempt began or ended; `links` what this node has measured of its own.
    """
    ring = None if replica is None else replica.ring
    if replica is None or ring is None:
        return None
    mode, state = parse_mode(replica.spec.mode), ring.state
    return {
        "round": state.round,
        "payload": mode.payload,
        "order_by": ring.order_by,
        "order": [name_node(node, replica.names) for node in ring.order[:NAMED_MAX]],
        "nodes": len(ring.order),
        "attempt": state.attempt,
        "running": state.running,
        "active": state.active,
        "contributed": state.contributed,
        "waiting_for": ring.waiting_for(now),
        "since_s": round(now - ring.since, 1),
        "links": [
            {
                "node": name_node(row.node, replica.names),
                "round_trip_ms": row.round_trip_us / 1000,
                "bytes_per_s": 1024 * row.kib_per_s,
            }
            for row in state.links[:NAMED_MAX]
        ],
    }


def stands_still(ring: Mapping[str, Any] | None) -> bool:
    """Whether a trainer that takes part in this ring has had nothing to do for a while: it waits for others,
    and not they for it.
    """
    if ring is None or not ring["active"] or not ring["waiting_for"] or ring["since_s"] < WAIT_SAID_S:
        return False
    return bool(ring["contributed"] or not ring["running"])
