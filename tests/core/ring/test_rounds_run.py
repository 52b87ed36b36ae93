"""A ring in which nothing goes wrong."""

from __future__ import annotations

import pytest

from tests.core.ring.cluster import RingCluster


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_are_equal_after_every_round(size: int) -> None:
    cluster = RingCluster(size)
    cluster.start()
    for done in range(1, 6):
        cluster.run()
        cluster.assert_all_at(done)
    assert all(len(opened) == 6 for opened in cluster.opened)
    assert [opened[1].contributors for opened in cluster.opened] == [size] * size
