"""The limits of a scenario in mode `owners`: how much waits at a contributor, how few own and relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from p2psgd.core.owners import owners, ranges, relay_trees
from tests.sim.ring.work import RingWork


@dataclass(frozen=True, slots=True)
class OwnersWork:
    """`pending_max` contributions to one owner, or `pending_bytes_max` to all, that no update covers: beyond
    the trainer waits. `redealt_bytes_max`: contributions that others were given, and that are kept. `rounds`:
    how nodes train in rounds; None: nobody waits. `calm`: there all nodes train in each round. `owners_min`:
    how many own weights, if there are as many members; `fan_out`: how many copies of an update leave a node.
    """

    pending_max: int
    pending_bytes_max: int
    redealt_bytes_max: int
    rounds: RingWork | None = None
    calm: bool = False
    owners_min: int = ranges.OWNERS_MIN
    fan_out: int = relay_trees.FAN_OUT


@contextmanager
def small_limits(work: OwnersWork | None) -> Iterator[None]:
    """Have the core keep to these limits in place of its own."""
    usual = owners.PENDING_MAX, owners.PENDING_BYTES_MAX, owners.REDEALT_BYTES_MAX
    few = ranges.OWNERS_MIN, relay_trees.FAN_OUT
    try:
        if work is not None:
            owners.PENDING_MAX = work.pending_max  # type: ignore[misc]
            owners.PENDING_BYTES_MAX = work.pending_bytes_max  # type: ignore[misc]
            owners.REDEALT_BYTES_MAX = work.redealt_bytes_max  # type: ignore[misc]
            ranges.OWNERS_MIN = work.owners_min  # type: ignore[misc]
            relay_trees.FAN_OUT = work.fan_out  # type: ignore[misc]
        yield
    finally:
        owners.PENDING_MAX, owners.PENDING_BYTES_MAX, owners.REDEALT_BYTES_MAX = usual  # type: ignore[misc]
        ranges.OWNERS_MIN, relay_trees.FAN_OUT = few  # type: ignore[misc]
