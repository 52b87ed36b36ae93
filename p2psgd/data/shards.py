"""A data set of shards, as a training script uses it: fetched ahead, and shared out among the nodes of a run.

`batches` and `each` are generators beside a link: they say what this node is at work on by the link's counts
of shards, which are replicated like the weights (trainer/shard_counts.py), and choose by the same counts
(dealing.py). While they wait, for the store or for other nodes, they receive updates and say so in the node's
status; the daemon and the other nodes do not wait.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.data.attempts import Patience
from p2psgd.data.cache import CACHE_BYTES, Cache, default_cache
from p2psgd.data.dealing import Deal, Dealing
from p2psgd.data.fetching import Fetch, fetch_list
from p2psgd.data.formats import Arrays
from p2psgd.data.shard_list import Shard, ShardList
from p2psgd.data.store import open_store
from p2psgd.errors import TrainerError, UsageError

LEASE_S: Final = 30.0
ACTIVE_S: Final = 60.0  # a peer without a mini-batch for so long is not at work
LOOK_EVERY_S: Final = 0.25  # how soon a wait notices that it is over
SAY_EVERY_S: Final = 1.0
AHEAD_MAX: Final = 64


class ShardLink(Protocol):
    """What is asked of a link (trainer/link.py)."""

    @property
    def node_id(self) -> int:
        """This node's."""

    @property
    def peer_mini_batches(self) -> Mapping[int, int]:
        """Mini-batches of every peer, as far as known here."""

    @property
    def stopping(self) -> bool:
        """The daemon asks for an end."""

    @property
    def shard_counts(self) -> NDArray[np.int64]:
        """(2, shards): taken, used."""

    def count_shard(self, shard: int, *, taken: int = 0, used: int = 0) -> None:
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
class _Taken:
    """A shard that this node has taken, and is being brought."""

    deal: Deal
    fetch: Fetch
    since: float


@dataclass(frozen=True, slots=True)
class Use:
    """One shard in one epoch (from 1), this node's to train on; `number` is its place in the list.

    `count_as_used` says that it is through, with the next `send`: called before the last one for it, that
    bears both. Asking for the next shard says it too.
    """

    epoch: int
    number: int
    shard: Shard
    arrays: Arrays
    count_as_used: Callable[[], None]


class Shards:
    """The shards below a folder or URL, by the list `shards.json` there.

    At most `ahead` + 1 shards are in memory, one of them the one in use, and the file of each that is just
    being read. `patience`: with the store. `cache`: a folder that files from a URL are kept in, up to
    `cache_bytes`; None: the usual one.
    UsageError if there is no such list, StoreError if the store gives none.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        ahead: int = 1,
        patience: Patience | None = None,
    ) -> None:
        if not 0 <= ahead <= AHEAD_MAX:
            raise UsageError(f"ahead = {ahead} is refused: 0 to {AHEAD_MAX} shards can be fetched ahead")
        self._store = open_store(str(place))
        self.patience = patience or Patience()
        self._ahead = ahead
        self._cache = None
        if self._store.local is None:
            folder = default_cache() if cache is None else Path(cache).expanduser()
            self._cache = Cache(folder, bytes_max=cache_bytes)
        self.list: ShardList = fetch_list(self._store, self.patience)

    @property
    def place(self) -> str:
        """The folder or URL."""
        return self._store.place

    def only(self, array: str) -> Shards:
        """The shards with an array of this name; UsageError if there are none."""
        chosen = self.list.with_array(array)
        if not chosen:
            known = ", ".join(sorted({name for shard in self.list.shards for name in shard.arrays}))
            raise UsageError(f"no shard of {self.place} has an array {array}; there are {known:.300}")
        part: Shards = object.__new__(type(self))
        part.__dict__.update(self.__dict__, list=self.list.of(chosen))
        return part

    def load(self, shard: Shard) -> Arrays:
        """The arrays of one shard, for which this waits."""
        fetch = self._fetch(shard)
        while not fetch.wait(LOOK_EVERY_S):
            pass
        return fetch.result()

    def batches(
        self, link: ShardLink, size: int, *, epochs: int = 1, seed: int = 1, lease_s: float = LEASE_S
    ) -> Generator[Arrays, None, None]:
        """Mini-batches of `size` samples (the last of a shard may be shorter), as dicts of arrays.

        Each shard is used in random order that follows from `seed`, epoch and shard. Give each mini-batch to
        one `link.send`. Otherwise as `each`.
        """
        if size < 1:
            raise UsageError(f"a mini-batch of {size} samples is refused: give 1 or more")
        with contextlib.closing(self.each(link, epochs=epochs, lease_s=lease_s)) as uses:
            for use in uses:
                order = shuffled(use, seed)
                for begin in range(0, len(order), size):
                    if link.stopping:
                        return
                    rows = order[begin : begin + size]
                    if begin + size >= len(order):
                        use.count_as_used()
                    yield {name: array[rows] for name, array in use.arrays.items()}

    def each(
        self,
        link: ShardLink,
        *,
        epochs: int = 1,
        lease_s: float = LEASE_S,
        says: Callable[[str], None] | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> Generator[Use, None, None]:
        """The shards that this node is to use, one after the other, until all were used in all epochs, by
        whichever node, or `link.stopping` or `ended()`.

        A shard that another node has taken is given up `lease_s` after the last sign of it, or after four
        times as long as this node ever took for one, whichever is longer. `says`: hears what is waited for,
        instead of the node's status. The link must have been attached with this `list`. StoreError when the
        store does not give a shard.
        """
        if not 1 <= epochs < 2**20:
            raise UsageError(f"epochs = {epochs} is refused: give 1 to {2**20 - 1}")
        if link.shard_counts.shape[1] != len(self.list.shards):
            raise TrainerError(
                f"the run counts {link.shard_counts.shape[1]} shards, and {self.place} has"
                f" {len(self.list.shards)}: attach with shards=data.list"
            )
        turn = _Turn(link, Dealing(self.list, link.node_id, epochs=epochs, lease_s=lease_s), says, ended)
        queue: deque[_Taken] = deque()
        try:
            while not turn.over(busy=bool(queue)):
                while len(queue) <= self._ahead and (deal := turn.take({t.deal.shard for t in queue})):
                    fetch = self._fetch(self.list.shards[deal.shard])
                    queue.append(_Taken(deal, fetch, time.monotonic()))
                if not queue:
                    turn.wait_for_others()
                elif turn.is_late(queue[0].deal):
                    turn.give_back([queue.popleft()])
                elif turn.wait_for(queue[0].fetch):
                    yield from turn.use(queue)
        finally:
            with contextlib.suppress(TrainerError):  # whose link is gone has nobody to tell
                turn.give_back(queue)

    def _fetch(self, shard: Shard) -> Fetch:
        return Fetch(self._store, self._cache, shard, self.patience)


class _Turn:
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

    def take(self, held: set[int]) -> Deal | None:
        """The next shard, counted as taken."""
        taken, used = self._link.shard_counts
        now = time.monotonic()
        deal = self._dealing.choose(taken, used, others=self._at_work(now), held=held, now=now)
        if deal is not None:
            self._link.count_shard(deal.shard, taken=1)
        return deal

    def use(self, queue: deque[_Taken]) -> Iterator[Use]:
        """The first of the queue, which leaves it once it is through."""
        first = queue[0]
        deal, fetch, counted = first.deal, first.fetch, False

        def count() -> None:
            nonlocal counted
            if not counted:
                counted = True
                self._count_as_used(deal)

        self._done_waiting()
        yield Use(deal.epoch, deal.shard, fetch.shard, fetch.result(), count)
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
        self._link.flush_shard_counts()
        self._link.wait(LOOK_EVERY_S)
        _, used = self._link.shard_counts
        left = int((used < self._dealing.epochs).sum())
        self._wait(f"{left} of {len(used)} shards are other nodes' to use")

    def is_late(self, deal: Deal) -> bool:
        """Others have used it meanwhile, who did not know that this node has taken it, or gave it up."""
        return bool(self._link.shard_counts[1, deal.shard] >= deal.epoch)

    def give_back(self, queue: Iterable[_Taken]) -> None:
        """Those that were not used: others need not wait for a lease."""
        taken, used = self._link.shard_counts
        for deal in (each.deal for each in queue):
            if used[deal.shard] < deal.epoch and taken[deal.shard] > used[deal.shard]:
                self._link.count_shard(deal.shard, taken=-1)
        self._link.flush_shard_counts()
        self._done_waiting()

    def _count_as_used(self, deal: Deal) -> None:
        """Unless another node, which had thought that this one was gone, has done it already."""
        taken, used = self._link.shard_counts[:, deal.shard]
        if used < deal.epoch:
            self._link.count_shard(deal.shard, taken=int(deal.epoch - taken), used=1)

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
        self._link.receive()
        self._at_work(now)
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            self._said = f"{words}: waited {now - self._waiting_since:.0f} s so far"
            self._says(self._said)

    def _done_waiting(self) -> None:
        self._waiting_since = None
        if self._said:
            self._said = ""
            self._says("")


def shuffled(use: Use, seed: int) -> NDArray[np.int64]:
    """The order of a shard's samples, (samples,): by PCG64's raw output, which numpy promises never to
    change.
    """
    source = np.random.PCG64(np.random.SeedSequence([seed, use.epoch, use.number]))
    return np.argsort(source.random_raw(use.shard.samples), kind="stable")
