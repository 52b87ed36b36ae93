"""Which shard a node takes next. Pure: from counts that all nodes share, as far as they have come.

Of every shard the replicas hold two counts: how many nodes hold it now, and how often it was used to its end.
Whoever takes a shard adds itself to the first, and takes itself away when it is through or gives it back; who
is the first to be through in an epoch counts the shard as used. So a node needs to know nothing of the others
to begin or to leave, and a fast node uses more shards than a slow one.

A shard is free when nobody holds it. A node prefers those that are its own by rendezvous hashing over the
nodes it knows to be at work, also while they are an epoch ahead of others: it is rare that two reach for the
same one at the same moment, and shards come back to the node whose cache has them. In which order it takes
those is mixed anew in each life of its trainer: one that ends at a shard it cannot read would otherwise begin
with the same one again, and come to no other. What a node held when it died is free for others once nothing
has changed there for a lease, which is much longer than this node itself ever takes; whoever takes that then
takes the dead one away with itself.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.data.shard_list import ShardList

Counts = NDArray[np.int64]
HOLD_FACTOR: Final = 4  # a shard that others hold for so many times as long as this node ever did is given up


@dataclass(frozen=True, slots=True)
class Deal:
    """Shard number `shard` (its place in the list) for epoch `epoch`, from 1.

    `begins` is added to how many hold it when it is taken, `ends` taken away in the end.
    """

    shard: int
    epoch: int
    begins: int = 1
    ends: int = 1


class Dealing:
    """One node's, over one life of its trainer. `node`: its id; `life`: any 64 bits, others in each life;
    `lease_s`: the shortest lease.
    """

    def __init__(self, shards: ShardList, node: int, *, life: int, epochs: int, lease_s: float) -> None:
        self.epochs = epochs
        self._node = node
        self._lease_s = lease_s
        self._hold_s = 0.0  # the longest that this node has held a shard
        self._contents = np.array([int(shard.sha256[:16], 16) for shard in shards.shards], np.uint64)
        self._order = self._mixed_with(life)
        self._seen: tuple[Counts, Counts] | None = None
        self._since = np.zeros(len(self._contents))  # when either count of a shard last changed

    def over(self, used: Counts) -> bool:
        """Every shard was used in every epoch."""
        return bool((used >= self.epochs).all())

    def choose(
        self, held: Counts, used: Counts, *, others: Set[int], mine: Set[int], now: float
    ) -> Deal | None:
        """What to take next, None if there is nothing to take now.

        held, used: (shards,) each. `others`: nodes that seem to be at work; `mine`: shards that this node
        holds; `now` in seconds, monotonic.
        """
        self._look(held, used, now)
        wanted = used < self.epochs
        wanted[list(mine)] = False
        free = wanted & (held <= 0)
        late = wanted & (now - self._since > max(self._lease_s, HOLD_FACTOR * self._hold_s)) & ~free
        if not (free | late).any():
            return None
        behind = used[free | late].min()
        rank = self._mixed_with(self._node)
        own = np.ones(len(used), bool)
        for other in others:
            own &= rank > self._mixed_with(other)
        preferred = (free & own & (used <= behind + 1), free & (used == behind), late & (used == behind))
        places = next(places for each in preferred if len(places := np.flatnonzero(each)))
        shard = int(places[np.lexsort((self._order[places], -used[places]))[-1]])
        holders = int(held[shard])
        if holders > 0:
            return Deal(shard, int(used[shard]) + 1, ends=1 + holders)
        return Deal(shard, int(used[shard]) + 1, begins=1 - holders)

    def held_for(self, seconds: float) -> None:
        """This node has used a shard so long after it had taken it."""
        self._hold_s = max(self._hold_s, seconds)

    def _look(self, held: Counts, used: Counts, now: float) -> None:
        if self._seen is None:
            self._since[:] = now
        else:
            self._since[(held != self._seen[0]) | (used != self._seen[1])] = now
        self._seen = held.copy(), used.copy()

    def _mixed_with(self, number: int) -> NDArray[np.uint64]:
        """A number for every shard: it belongs to the node with the highest [Thaler, Ravishankar 1998]."""
        mixed: NDArray[np.uint64] = _mix(self._contents ^ _mix(np.array([number], np.uint64)))
        return mixed


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finisher of splitmix64, which makes every bit depend on every other one."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    finished: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return finished
