"""A ring in which nothing goes wrong."""

from __future__ import annotations

import pytest

from p2psgd.core.retention import STALL
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


def test_however_fast_rounds_come_only_the_last_is_beyond_a_logs_budget() -> None:
    cluster = RingCluster(3)
    cluster.start()
    log = cluster.replica(1).log
    log.budget_bytes = 4000
    for _ in range(30):
        if 1 not in cluster.open:
            assert log.pressure >= STALL
            cluster.tick(3.0)  # all have told what they have, so it is trimmed
        before = log.bytes_held
        assert before <= log.budget_bytes
        cluster.run()
    assert log.trimmed_to(cluster.replica(1).me) > 0
    cluster.tick(3.0)
    cluster.assert_converged()
