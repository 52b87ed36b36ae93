"""Lists of shards for tests."""

from __future__ import annotations

import hashlib

from p2psgd.data.shard_list import Array, Shard, ShardList


def shard_list(count: int) -> ShardList:
    """Of so many shards, which are nowhere."""
    return ShardList(
        shards=tuple(
            Shard(
                name=f"{number:05}.npy",
                bytes=1,
                sha256=hashlib.sha256(b"%d" % number).hexdigest(),
                samples=1,
                arrays={"array": Array(dtype="int8", shape=(1,))},
            )
            for number in range(count)
        )
    )
