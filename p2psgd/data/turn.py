"""One node's part in going through shards: what it takes, waits for, counts and gives back.

By the counts of its link, which are replicated like the weights (trainer/shard_counts.py). While it waits,
for the store or for other nodes, it receives updates and says so in the node's status.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.data.dealing import Deal, Dealing
from p2psgd.data.fetching import LOOK_EVERY_S, Fetch
from p2psgd.data.formats import Arrays
from p2psgd.data.shard_list import Shard

ACTIVE_S: Final = 60.0  # a peer without a mini-batch for so long is not at work
SAY_EVERY_S: Final = 1.0


class ShardLink(Protocol):
    """What is asked of a link (trainer/link.py)."""

    @property
    def node_id(self) -> int:
        """This node's."""

    @property
    def peer_mini_batches(self) -> Mapping[int, int]:
        """Mini-batches of every peer, as far as known here."""

    @property
    def mini_batches(self) -> int:
        """How often this node's trainers have sent."""

    @property
    def stopping(self) -> bool:
        """The daemon asks for an end."""

    @property
    def shard_counts(self) -> NDArray[np.int64]:
        """(2, shards): held, used."""

    def count_shard(self, shard: int, *, held: int = 0, used: int = 0) -> None:
        """Add to them with the next send."""

    def flush_shard_counts(self) -> None:
        """Add now."""

    def receive(self) -> int:
        """Apply what has arrived."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives."""

    def report(self, **figures: Any) -> None:
        """For people."""


@dataclass(slots=True)
class Taken:
    """A shard that this node has taken, and is being brought."""

    deal: Deal
    fetch: Fetch
    since: float
    used: int | None = None  # what was added to how often it was used,
    mini_batches: int = 0  # to go out with the send after so many


@dataclass(frozen=True, slots=True)
class Use:
    """One shard in one epoch (from 1), this node's to train on; `number` is its place in the list.

    `count_as_used` says that it is through, with the next `send`: called before the last one for it, that
    bears both. Asking for the next shard says it too, and empties `arrays`.
    """

    epoch: int
    number: int
    shard: Shard
    arrays: Arrays
    count_as_used: Callable[[], None]


class Turn:
    """This node's part in one going through of the shards."""

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
        """There is nothing left to do, or the end is asked for."""
        if self._link.stopping or self._ended():
            return True
        return not busy and self._dealing.over(self._link.shard_counts[1])

    def take(self, mine: set[int]) -> Deal | None:
        """The next shard, which is held from now on."""
        held, used = self._link.shard_counts
        now = time.monotonic()
        deal = self._dealing.choose(held, used, others=self._at_work(now), mine=mine, now=now)
        if deal is not None:
            self._link.count_shard(deal.shard, held=deal.begins)
        return deal

    def use(self, queue: deque[Taken]) -> Iterator[Use]:
        """The first of the queue, which leaves it once it is through."""
        first = queue[0]
        deal, arrays = first.deal, first.fetch.result()

        def count() -> None:
            if first.used is None:
                first.mini_batches = self._link.mini_batches
                first.used = self._count_as_used(deal)

        self._done_waiting()
        yield Use(deal.epoch, deal.shard, first.fetch.shard, arrays, count)
        arrays.clear()  # before the next fetch begins, for the caller still has this one
        count()
        queue.popleft()
        self._dealing.held_for(time.monotonic() - first.since)

    def wait_for(self, fetch: Fetch) -> bool:
        """A little; whether it is there. What the store fails to give is raised."""
        if fetch.wait(0.0) or fetch.wait(LOOK_EVERY_S):
            fetch.result()
            return True
        self._wait(f"shard {fetch.shard.name} is being fetched from {fetch.place}")
        return False

    def wait_for_others(self) -> None:
        """A little."""
        self._link.wait(LOOK_EVERY_S)
        _, used = self._link.shard_counts
        left = int((used < self._dealing.epochs).sum())
        self._wait(f"{left} of {len(used)} shards {'is' if left == 1 else 'are'} other nodes' to use")

    def is_late(self, deal: Deal) -> bool:
        """Others have used it meanwhile, who did not know that this node holds it, or gave it up."""
        return bool(self._link.shard_counts[1, deal.shard] >= deal.epoch)

    def give_back(self, queue: Iterable[Taken]) -> None:
        """Those that were not used: others need not wait for a lease. Not used is also what was counted for a
        `send` that has not come.
        """
        for each in queue:
            each.fetch.give_up()
            if each.used is None:
                self._link.count_shard(each.deal.shard, held=-each.deal.ends)
            elif each.mini_batches == self._link.mini_batches:
                self._link.count_shard(each.deal.shard, used=-each.used)
        self._link.flush_shard_counts()
        self._done_waiting()

    def _count_as_used(self, deal: Deal) -> int:
        """In this epoch, unless another node has done so already; held no more. What that added."""
        used = int(self._link.shard_counts[1, deal.shard] < deal.epoch)
        self._link.count_shard(deal.shard, held=-deal.ends, used=used)
        return used

    def _at_work(self, now: float) -> set[int]:
        at_work = set()
        for node, mini_batches in self._link.peer_mini_batches.items():
            before, changed = self._heard.get(node, (None, now - ACTIVE_S))
            if mini_batches != before:
                changed = now if before is not None else changed
                self._heard[node] = mini_batches, changed
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
