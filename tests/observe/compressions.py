"""Descriptions of compression as a daemon gives them, for tests of views."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2psgd.observe.compression import OwnCompression
from p2psgd.observe.status import Compression
from p2psgd.wire import codec
from p2psgd.wire.update import OwnUpdateMade

TENSORS = (("hidden.weight", (80, 100)), ("hidden.bias", (100,)), ("output.weight", (1900,)))
WEIGHTS = 10_000


def own_compression(*, updates: int, indices: int = 50, seed: int = 1) -> OwnCompression:
    """A mini-batch for each update."""
    own, random = OwnCompression(), np.random.default_rng(seed)
    own.begin(TENSORS)
    for steps in range(1, updates + 1):
        words = (np.sort(random.choice(WEIGHTS, indices, replace=False)) << 1).astype(np.uint32)
        own.count(OwnUpdateMade(steps, 4_000, codec.encode(words, WEIGHTS), words))
    return own


def description(*, updates: int = 300, **options: Any) -> Compression:
    """What `p2psgd status --json` has under "compression"."""
    own = own_compression(updates=updates, **options)
    found = own.describe()
    assert found is not None
    return found
