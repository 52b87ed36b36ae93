from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.core.cluster import Cluster


@pytest.fixture
def clusters() -> Iterator[Callable[..., Cluster]]:
    """Make clusters; each is checked for equal replicas at equal frontiers when the test ends."""
    made: list[Cluster] = []

    def make(size: int, **options: Any) -> Cluster:
        made.append(Cluster(size, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.assert_equal_at_equal_frontiers()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five slices to a copy and as many chunks to a snapshot."""
    monkeypatch.setattr("p2psgd.core.scrub.SLICE", 1000)
    monkeypatch.setattr("p2psgd.core.snapshot_feed.CHUNK_BYTES", 4000)
