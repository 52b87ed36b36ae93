"""What a link offers to whoever shares out the shards of the data (data/shards.py): counts that all nodes
have in common (shard_counts.py).
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.trainer.compute import Compute
from p2psgd.trainer.given import Given
from p2psgd.trainer.shard_counts import ShardCounts
from p2psgd.wire import codec


class ShardCalls(abc.ABC):
    """Of a link whose trainer went on after `_begun` mini-batches; `_counts` None: it counts none."""

    _memory: TrainerMemory[Given]
    _compute: Compute
    _counts: ShardCounts | None
    _begun: int
    _all_weights: int  # counts included
    _exact: bool

    @abc.abstractmethod
    def _check_open(self) -> None:
        """TrainerError if the link is closed."""

    @abc.abstractmethod
    def _reload(self) -> None:
        """Fetch the weights from the replica."""

    @abc.abstractmethod
    def _wait_for_room(self, entries: list[bytes]) -> None:
        """Wait until the outbox has room for these."""

    @property
    def shard_counts(self) -> NDArray[np.int64]:
        """(2, shards): how many nodes hold each shard of the data, and how often it was used, as far as is
        known here, with what `count_shard` told. TrainerError in a run that was attached to without `shards`.
        """
        counts = self._shard_counts()
        return counts.counts(self._compute.fetch(*counts.place), self._memory.mark.changes_counted)

    def count_shard(self, shard: int, *, held: int = 0, used: int = 0) -> None:
        """Have this added to the counts of a shard, by its place in the list, with the next `send`."""
        self._shard_counts().change(shard, held=held, used=used)

    def flush_shard_counts(self) -> None:
        """Have all that `count_shard` told added now, for no `send` follows. A trainer that has not sent
        anything yet has told nobody anything.
        """
        self._check_open()
        memory = self._memory
        if not self._exact:
            self._reload()
        entries: list[bytes] = []
        counted, given = self._count_shards(memory.mini_batches, entries)
        if not entries or memory.mini_batches == self._begun:
            return
        self._wait_for_room(entries)
        self._exact = False
        memory.publish(entries, given, ends=False)
        self._apply_counts(counted)
        self._exact = True

    def _shard_counts(self) -> ShardCounts:
        if self._counts is None:
            raise TrainerError(
                "this run counts no shards: give their list to p2psgd.attach(..., shards=data.list)"
            )
        return self._counts

    def _count_shards(self, mini_batch: int, entries: list[bytes]) -> tuple[list[bytes], Given]:
        """Append what `count_shard` told to the entries of a publication; return the same for the working
        copy, and what to mark the publication with.
        """
        given = self._memory.mark
        if self._counts is None:
            return [], given
        parts = self._counts.parts(given.changes_counted)
        for step, words in parts:
            head = layout.OUTBOX_ENTRY.pack(mini_batch, step, len(words))
            entries.append(head + codec.encode(words, self._all_weights))
        bodies = [self._counts.body(part) for part in parts]
        return bodies, dataclasses.replace(given, changes_counted=self._counts.made)

    def _apply_counts(self, bodies: list[bytes]) -> None:
        """To the working copy, between a publication and the next thing that looks at it."""
        self._compute.apply_received(bodies, lambda node, mini_batch: None)
