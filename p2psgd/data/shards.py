"""Present a data set of shards to a training script: fetched ahead, and distributed among a run's nodes."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.data.assignment import Dealing, ShardLink, Taken, Turn, Use, raised_termination
from p2psgd.data.fetch import LOOK_EVERY_S, Cache, Fetch, default_bytes, default_cache, fetch_list
from p2psgd.data.shard_list import Arrays, Shard, ShardList
from p2psgd.data.store import RetryPolicy, open_store

LEASE_S: Final = 30.0
AHEAD_MAX: Final = 64


class Shards:
    """The shards below a folder or URL, which its list `shards.json` names.

    At most `ahead` + 1 shards are in memory, one of them in use, besides the file that is being read. `list`
    is the list for `p2psgd.attach(shards=...)`.

    Args:
        place: The folder or URL that contains `shards.json`.
        cache: The folder that keeps files from a URL. Default: $P2PSGD_CACHE, else
            $XDG_CACHE_HOME/p2psgd/shards, else the same in ~/.cache.
        cache_bytes: The limit of that folder in bytes. Default: $P2PSGD_CACHE_BYTES, else 10 GiB.
        ahead: The number of shards to fetch ahead, 0 to 64. Default: 1.
        patience: Pauses between attempts to read the store. Default: four more attempts, after 1, 2, 4 and 8
            s.

    Raises:
        UsageError: there is no such list, or an argument is out of range.
        StoreError: the store does not return the list.

    Example:
        ```python
        data = p2psgd.data.Shards("s3://bucket/train")
        with p2psgd.attach(initial, shards=data.list) as link:
            for batch in data.batches(link, 256, epochs=10):
                link.receive()
                link.send(change_for(batch), threshold=4000)
        ```
    """

    def __init__(
        self,
        place: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
        ahead: int = 1,
        patience: RetryPolicy | None = None,
    ) -> None:
        if not 0 <= ahead <= AHEAD_MAX:
            raise UsageError(f"ahead = {ahead} is refused: 0 to {AHEAD_MAX} shards can be fetched ahead")
        self._store = open_store(str(place))
        self.patience = patience or RetryPolicy()
        self._ahead = ahead
        self._cache = None
        if self._store.local is None:
            folder = default_cache() if cache is None else Path(cache).expanduser()
            self._cache = Cache(folder, bytes_max=default_bytes() if cache_bytes is None else cache_bytes)
        self.list: ShardList = fetch_list(self._store, self.patience)

    @property
    def place(self) -> str:
        """The folder or URL."""
        return self._store.place

    def only(self, array: str) -> Shards:
        """Return the shards that contain an array of this name.

        Args:
            array: The name of the array, such as "x_train".

        Raises:
            UsageError: no shard has such an array.
        """
        chosen = self.list.with_array(array)
        if not chosen:
            known = ", ".join(sorted({name for shard in self.list.shards for name in shard.arrays}))
            raise UsageError(f"no shard of {self.place} has an array {array}; there are {known:.300}")
        part: Shards = object.__new__(type(self))
        part.__dict__.update(self.__dict__, list=self.list.of(chosen))
        return part

    def load(self, shard: Shard) -> Arrays:
        """Read one shard and return its arrays by name; waits for the store.

        Args:
            shard: An entry of `list.shards`.

        Raises:
            StoreError: the store does not return the shard.
            UsageError: the shard is damaged.
        """
        fetch = self._fetch(shard)
        while not fetch.wait(LOOK_EVERY_S):
            pass
        return fetch.result()

    def batches(
        self, link: ShardLink, size: int, *, epochs: int = 1, seed: int = 1, lease_s: float = LEASE_S
    ) -> Generator[Arrays, None, None]:
        """Yield mini-batches of samples as dicts of arrays, from the shards that this node takes.

        Give each mini-batch to exactly one `link.send`: the last one of a shard also records that the shard
        was used. The samples of a shard are in random order, which follows from `seed`, epoch and shard.

        Args:
            link: The link, attached with `shards=data.list`.
            size: Samples in a mini-batch, at least 1; the last mini-batch of a shard may be smaller.
            epochs: Passes over all shards, by all nodes together. Default: 1.
            seed: Seed of the order within a shard. Default: 1.
            lease_s: Seconds after which a shard that another node holds is given up; see `each`. Default: 30.

        Raises:
            StoreError: the store does not return a shard.
            UsageError: an argument is out of range.
            TrainerError: the link was attached with another list.
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
        """Yield the shards that this node takes, until all were used in all epochs, by whichever node.

        The loop also ends when `link.stopping` is set. Meanwhile SIGTERM raises SystemExit, unless the script
        handles it.

        Args:
            link: The link, attached with `shards=data.list`.
            epochs: Passes over all shards, by all nodes together. Default: 1.
            lease_s: Seconds after the last sign of a node at which a shard that it holds is given up; at
                least four times as long as this node ever took for one. Default: 30.
            says: Called with a sentence while the loop waits. Default: the sentence goes to the node's
                status.
            ended: Called between shards; the loop ends when it returns True. Default: never.

        Raises:
            StoreError: the store does not return a shard.
            UsageError: an argument is out of range.
            TrainerError: the link was attached with another list.
        """
        if not 1 <= epochs < 2**20:
            raise UsageError(f"epochs = {epochs} is refused: give 1 to {2**20 - 1}")
        if link.shard_counts.shape[1] != len(self.list.shards):
            raise TrainerError(
                f"the run counts {link.shard_counts.shape[1]} shards, and {self.place} has"
                f" {len(self.list.shards)}: attach with shards=data.list"
            )
        life = secrets.randbits(64)
        dealing = Dealing(self.list, link.node_id, life=life, epochs=epochs, lease_s=lease_s)
        turn = Turn(link, dealing, says, ended)
        queue: deque[Taken] = deque()
        with raised_termination():
            try:
                while not turn.over(busy=bool(queue)):
                    while len(queue) <= self._ahead and (deal := turn.take({t.deal.shard for t in queue})):
                        fetch = self._fetch(self.list.shards[deal.shard])
                        queue.append(Taken(deal, fetch, time.monotonic()))
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


def shuffled(use: Use, seed: int) -> NDArray[np.int64]:
    """Return the order of a shard's samples, (samples,).

    It is made from PCG64's raw output, which numpy promises never to change.
    """
    source = np.random.PCG64(np.random.SeedSequence([seed, use.epoch, use.number]))
    return np.argsort(source.random_raw(use.shard.samples), kind="stable")
