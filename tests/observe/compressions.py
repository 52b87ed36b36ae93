"""Descriptions of compression as a daemon gives them, for tests of views."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.observe.compression import OwnCompression, describe_compression
from p2psgd.observe.status import Compression
from p2psgd.wire import codec

TENSORS = (("hidden.weight", (80, 100)), ("hidden.bias", (100,)), ("output.weight", (1900,)))
WEIGHTS = 10_000


def own_compression(*, updates: int, indices: int = 50, seed: int = 1) -> OwnCompression:
    """A mini-batch for each update."""
    own, random = OwnCompression(TENSORS, Origin(1, 1)), np.random.default_rng(seed)
    for mini_batch in range(1, updates + 1):
        words = (np.sort(random.choice(WEIGHTS, indices, replace=False)) << 1).astype(np.uint32)
        own.count(mini_batch=mini_batch, step=4_000, words=words, payload=codec.encode(words, WEIGHTS))
    return own


def description(*, updates: int = 300, **options: Any) -> Compression:
    """What `p2psgd status --json` has under "compression"."""
    own = own_compression(updates=updates, **options)
    return describe_compression(own.total(), own.recent(), TENSORS)
