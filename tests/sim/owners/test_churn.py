"""A small crowd by `make test`; a thousand nodes by `make crowd`."""

from __future__ import annotations

import pytest

from tests.sim.owners.churn import ChurnCrowd


def test_a_crowd_that_comes_and_goes_ends_equal() -> None:
    crowd = ChurnCrowd(nodes=40, rounds=12)
    crowd.run_all()
    assert not crowd.churn
    assert {node.replica.rounds_done for node in crowd.alive} == {12}
    assert crowd.alive[0].replica.view.number > 5
    assert crowd.notes["snapshot taken"] > 3


def test_a_replica_that_differs_is_found() -> None:
    crowd = ChurnCrowd(nodes=20, rounds=2)
    crowd.draw_churn()
    crowd.churn.clear()
    crowd.start()
    crowd.run(1.0)
    crowd.nodes[7].replica.lattice.digest += 1
    with pytest.raises(AssertionError, match="differs"):
        crowd.run(5.0)
