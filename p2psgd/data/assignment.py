"""Assign shards to nodes: choose the next one, count it and give it back."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.interruption import ignore
from p2psgd.data.fetch import LOOK_EVERY_S, Fetch
from p2psgd.data.shard_list import Arrays, Shard, ShardList

# ----------------------------------------------------------------------------
# Which shard a node takes next. Pure: from counts that all nodes share, as far as they have come.
#
# Of every shard the replicas hold two counts: how many nodes hold it now, and how often it was used to its
# end. A node that takes a shard adds itself to the first, and takes itself away when it is through or gives
# it back; the first to be through in an epoch counts the shard as used. So a node needs to know nothing
# of the others to begin or to leave, and a fast node uses more shards than a slow one.
#
# A shard is free when nobody holds it. A node prefers those that are its own by rendezvous hashing over the
# nodes it knows to be at work, also while they are an epoch ahead of others: it is rare that two reach for
# the same one at the same moment, and shards come back to the node whose cache has them. In which order it
# takes those is mixed anew at each start of its trainer: one that ends at a shard it cannot read would
# otherwise begin with the same one again, and come to no other. What a node held when it died is free for
# others once nothing has changed there for a lease, which is much longer than this node itself ever takes;
# the node that takes that then takes the dead one away with itself.


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
    """The assignment for one node, during one start of its trainer.

    `node`: its id; `life`: any 64 bits, different at each start; `lease_s`: the shortest lease.
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
        """Return True if every shard was used in every epoch."""
        return bool((used >= self.epochs).all())

    def choose(
        self, held: Counts, used: Counts, *, others: Set[int], mine: Set[int], now: float
    ) -> Deal | None:
        """Return the shard to take next, None if there is nothing to take now.

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
        """Note how many seconds this node held a shard before it had used it."""
        self._hold_s = max(self._hold_s, seconds)

    def _look(self, held: Counts, used: Counts, now: float) -> None:
        if self._seen is None:
            self._since[:] = now
        else:
            self._since[(held != self._seen[0]) | (used != self._seen[1])] = now
        self._seen = held.copy(), used.copy()

    def _mixed_with(self, number: int) -> NDArray[np.uint64]:
        """Return a number for every shard: it belongs to the node with the highest [Thaler, Ravishankar
        1998].
        """
        mixed: NDArray[np.uint64] = _mix(self._contents ^ _mix(np.array([number], np.uint64)))
        return mixed


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finisher of splitmix64, which makes every bit depend on every other one."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    finished: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return finished


# ----------------------------------------------------------------------------
# One node's part in going through shards: what it takes, waits for, counts and gives back.
#
# By the counts of its link, which are replicated like the weights (client/shard_counts.py). While it waits,
# for the store or for other nodes, it receives updates and says so in the node's status.


ACTIVE_S: Final = 60.0  # a peer without a mini-batch for so long is not at work
SAY_EVERY_S: Final = 1.0


class ShardLink(Protocol):
    """The calls of a link (client/link.py) that shards need."""

    @property
    def node_id(self) -> int:
        """The id of this node."""

    @property
    def peer_steps(self) -> Mapping[int, int]:
        """The mini-batches of every peer, as far as known here."""

    @property
    def steps(self) -> int:
        """The number of `send` calls of this node's trainers."""

    @property
    def stopping(self) -> bool:
        """True if the daemon asks for the end."""

    @property
    def shard_counts(self) -> NDArray[np.int64]:
        """The counts (2, shards): held, used."""

    def count_shard(self, shard: int, *, held: int = 0, used: int = 0) -> None:
        """Add to the counts with the next send."""

    def flush_shard_counts(self) -> None:
        """Add the counts now."""

    def receive(self) -> int:
        """Apply what has arrived."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives."""

    def report(self, **figures: Any) -> None:
        """Report figures for people."""


@dataclass(slots=True)
class Taken:
    """A shard that this node has taken and is fetching."""

    deal: Deal
    fetch: Fetch
    since: float
    used: int | None = None  # what was added to how often it was used,
    steps: int = 0  # to go out with the send after so many


@dataclass(frozen=True, slots=True)
class Use:
    """A shard in one epoch (from 1), for this node to train on; `number` is its place in the list.

    `count_as_used` records with the next `send` that the shard is used: call it before the last `send` for
    the shard, which then carries both. Asking for the next shard records it too, and empties `arrays`.
    """

    epoch: int
    number: int
    shard: Shard
    arrays: Arrays
    count_as_used: Callable[[], None]


class Turn:
    """This node's part in one pass over the shards."""

    def __init__(
        self,
        link: ShardLink,
        dealing: Dealing,
        says: Callable[[str], None] | None,
        ended: Callable[[], bool],
    ) -> None:
        self._link, self._dealing, self._ended = link, dealing, ended
        self._says = says or (lambda words: link.report(waits=words))
        self._said, self._said_at = "", -SAY_EVERY_S
        self._waiting_since: float | None = None
        self._heard: dict[int, tuple[int, float]] = {}  # of each peer: its mini-batches, when they changed

    def over(self, *, busy: bool) -> bool:
        """Return True if nothing is left to do, or the end is asked for."""
        if self._link.stopping or self._ended():
            return True
        return not busy and self._dealing.over(self._link.shard_counts[1])

    def take(self, mine: set[int]) -> Deal | None:
        """Take and hold the next shard."""
        held, used = self._link.shard_counts
        now = time.monotonic()
        deal = self._dealing.choose(held, used, others=self._at_work(now), mine=mine, now=now)
        if deal is not None:
            self._link.count_shard(deal.shard, held=deal.begins)
        return deal

    def use(self, queue: deque[Taken]) -> Iterator[Use]:
        """Yield the first shard of the queue, which leaves the queue once it is used."""
        first = queue[0]
        deal, arrays = first.deal, first.fetch.result()

        def count() -> None:
            if first.used is None:
                first.steps = self._link.steps
                first.used = self._count_as_used(deal)

        self._done_waiting()
        yield Use(deal.epoch, deal.shard, first.fetch.shard, arrays, count)
        arrays.clear()  # before the next fetch begins, for the caller still has this one
        count()
        queue.popleft()
        self._dealing.held_for(time.monotonic() - first.since)

    def wait_for(self, fetch: Fetch) -> bool:
        """Wait a little; return True if the shard is there. Raises the errors of the store."""
        if fetch.wait(0.0) or fetch.wait(LOOK_EVERY_S):
            fetch.result()
            return True
        self._wait(f"shard {fetch.shard.name} is being fetched from {fetch.place}")
        return False

    def wait_for_others(self) -> None:
        """Wait a little."""
        self._link.wait(LOOK_EVERY_S)
        _, used = self._link.shard_counts
        left = int((used < self._dealing.epochs).sum())
        self._wait(f"{left} of {len(used)} shards {'is' if left == 1 else 'are'} other nodes' to use")

    def is_late(self, deal: Deal) -> bool:
        """Return True if other nodes have used the shard meanwhile."""
        return bool(self._link.shard_counts[1, deal.shard] >= deal.epoch)

    def give_back(self, queue: Iterable[Taken]) -> None:
        """Give back shards that were not used, so that others need not wait for a lease.

        A shard that was counted for a `send` that has not come was not used either.
        """
        for each in queue:
            each.fetch.give_up()
            if each.used is None:
                self._link.count_shard(each.deal.shard, held=-each.deal.ends)
            elif each.steps == self._link.steps:
                self._link.count_shard(each.deal.shard, used=-each.used)
        self._link.flush_shard_counts()
        self._done_waiting()

    def _count_as_used(self, deal: Deal) -> int:
        """Count the shard as used in this epoch, unless another node has done so already, and as held no
        more; return what that added.
        """
        used = int(self._link.shard_counts[1, deal.shard] < deal.epoch)
        self._link.count_shard(deal.shard, held=-deal.ends, used=used)
        return used

    def _at_work(self, now: float) -> set[int]:
        at_work = set()
        for node, steps in self._link.peer_steps.items():
            before, changed = self._heard.get(node, (None, now - ACTIVE_S))
            if steps != before:
                changed = now if before is not None else changed
                self._heard[node] = steps, changed
            if now - changed < ACTIVE_S:
                at_work.add(node)
        return at_work

    def _wait(self, words: str) -> None:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        self._link.flush_shard_counts()
        self._link.receive()
        self._at_work(now)
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            self._said = f"{words:.400}: waited {now - self._waiting_since:.0f} s so far"
            self._says(self._said)

    def _done_waiting(self) -> None:
        self._waiting_since = None
        if self._said:
            self._said = ""
            self._says("")


# ----------------------------------------------------------------------------
# SIGTERM ends a script by an exception while it goes through shards, so that what it holds is given back.


@contextlib.contextmanager
def raised_termination() -> Iterator[None]:
    """Make the first SIGTERM raise SystemExit meanwhile, unless the script handles it. One that comes after
    it is ignored, also afterwards, until a script that lived on goes through shards again.
    """
    if threading.current_thread() is threading.main_thread() and (_is(signal.SIG_DFL) or _is(ignore)):
        signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and _is(_end):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is(handler: object) -> bool:
    return signal.getsignal(signal.SIGTERM) is handler


def _end(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, ignore)  # it may come twice for one stop; SIGKILL comes last
    raise SystemExit(128 + number)
