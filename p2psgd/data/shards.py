"""A data set of shards, as a training script uses it: fetched ahead, and shared out among a run's nodes."""

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

from p2psgd.data.assignment import Dealing, ShardLink, Taken, Turn, Use, raised_termination
from p2psgd.data.fetch import LOOK_EVERY_S, Cache, Fetch, default_bytes, default_cache, fetch_list
from p2psgd.data.shard_list import Arrays, Shard, ShardList
from p2psgd.data.store import Patience, open_store
from p2psgd.errors import TrainerError, UsageError

LEASE_S: Final = 30.0
AHEAD_MAX: Final = 64


class Shards:
    """The shards below a folder or URL, by the list `shards.json` there.

    At most `ahead` + 1 shards are in memory, one of them the one in use, and the file of each that is just
    being read. `patience`: with the store. `cache`: a folder that files from a URL are kept in, up to
    `cache_bytes`; None: as fetch.py has them.
    UsageError if there is no such list, StoreError if the store gives none.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
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
            self._cache = Cache(folder, bytes_max=default_bytes() if cache_bytes is None else cache_bytes)
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
        store does not give a shard. Meanwhile SIGTERM, unless the script handles it, raises SystemExit.
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
    """The order of a shard's samples, (samples,): by PCG64's raw output, which numpy promises never to
    change.
    """
    source = np.random.PCG64(np.random.SeedSequence([seed, use.epoch, use.number]))
    return np.argsort(source.random_raw(use.shard.samples), kind="stable")
