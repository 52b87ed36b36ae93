from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.core.cluster import Cluster


@pytest.fixture
def clusters() -> Iterator[Callable[..., Cluster]]:
    """Make clusters; each is checked for equal replicas at equal frontiers when the test ends."""
    made: list[Cluster] = []

    def make(size: int, *, log_budget_bytes: int = 1 << 24) -> Cluster:
        made.append(Cluster(size, log_budget_bytes=log_budget_bytes))
        return made[-1]

    yield make
    for cluster in made:
        cluster.assert_equal_at_equal_frontiers()
