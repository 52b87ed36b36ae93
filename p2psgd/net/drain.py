"""The end of a clean stop: nobody leaves while a peer may still take what this node has made.

Linked peers are waited for until they have acknowledged everything. When none has, one that may come back
is waited for as well: what only this node holds is lost when it goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Set
from typing import Final

from p2psgd.core.replica import Replica
from p2psgd.net.mesh import Mesh

DRAIN_TIMEOUT_S: Final = 30.0
DRAIN_POLL_S: Final = 0.02

log = logging.getLogger("p2psgd.net")


async def deliver_rest(replica: Replica, mesh: Mesh, stopped_nodes: Set[int]) -> int:
    """Wait, for 30 s at most, until peers have acknowledged the own updates; return how many nobody has.

    `stopped_nodes` have said goodbye: they are not expected back.
    """
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while _is_undelivered(replica, mesh, stopped_nodes):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(DRAIN_POLL_S)
    for peer in replica.peers.values():
        if lag := 0 if peer.barred_at is not None else replica.lag(peer):
            log.warning("%s has not acknowledged %d updates", peer.name, lag)
    return replica.sequence - replica.parts.tally.acknowledged


async def leave(replica: Replica) -> None:
    """After GOODBYE, stay for one patience at most, to vote on the view without this node, until it is
    decided or nobody is left who would decide it.
    """
    deadline = time.monotonic() + replica.timing.patience_s
    while not replica.may_leave:
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(DRAIN_POLL_S)


def _is_undelivered(replica: Replica, mesh: Mesh, stopped_nodes: Set[int]) -> bool:
    """A linked peer lacks updates of ours; or all do, and one that has not stopped may come back."""
    if any(replica.lag(peer) for peer in replica.peers.values() if peer.barred_at is None):
        return True
    members = replica.membership.view.lives
    expected = any(
        each.node not in stopped_nodes and (each.hinted is None or each.node in members)
        for each in mesh.diallers
    )
    return expected and replica.parts.tally.acknowledged < replica.sequence


async def end_round(replica: Replica) -> None:
    """In a ring: let the share that this node's trainer gave last go into a round, within one patience."""
    ring = replica.ring
    if ring is None or not ring.contributed:
        return
    done, deadline = ring.done, time.monotonic() + replica.timing.patience_s
    while ring.running and ring.done == done:
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(DRAIN_POLL_S)
