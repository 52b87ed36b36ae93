from __future__ import annotations

import itertools
from typing import Any

from p2psgd.observe.history import EVERY_S, NODES_MAX, POINTS_MAX, History, steps_of
from p2psgd.observe.status import NodeStatus
from tests.observe.statuses import peer, ring, status, trainer


def seen(steps: int, loss: float | None, others: dict[str, int]) -> NodeStatus:
    rows: list[dict[str, Any]] = [{"node": node, "steps": count} for node, count in others.items()]
    peers = [peer("node-1", loss=3.0), peer("node-2", loss=None), peer("node-3", loss=9.0)]
    return status("node-0", trainer=trainer(steps=steps, loss=loss), frontier=rows, peers=peers)


def test_a_point_has_the_loss_and_the_pace_of_each_node_since_the_one_before() -> None:
    history = History()
    history.look(100.0, lambda: seen(0, None, {}), moment=100.0)
    assert history.points == []
    history.look(100.0 + EVERY_S / 2, lambda: seen(10**6, None, {}), moment=100.0 + EVERY_S / 2)  # not due
    history.look(102.0, lambda: seen(20, 1.5, {"node-0": 18, "node-1": 4}), moment=102.0)
    history.look(104.0, lambda: seen(30, None, {"node-0": 30, "node-1": 24}), moment=104.0)
    assert history.points == [
        (102.0, {"node-0": 1.5, "node-1": 3.0}, {"node-0": 10.0}),
        (104.0, {"node-1": 3.0}, {"node-0": 5.0, "node-1": 10.0}),
    ]


def test_it_is_bounded_and_keeps_its_first_and_its_last_point() -> None:
    history = History()
    for now in range(20 * POINTS_MAX):
        history.look(float(now), lambda now=now: seen(now, float(now), {}), moment=now)  # type: ignore[misc]
        assert len(history.points) < POINTS_MAX
    moments = [moment for moment, _, _ in history.points]
    assert moments[0] == 0.0
    assert 20 * POINTS_MAX - moments[-1] <= 64
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert max(gaps) <= 128


def test_of_very_many_nodes_those_with_most_steps_are_kept() -> None:
    steps = steps_of(seen(5, None, {f"node-{number}": number for number in range(1, 100)}))
    assert len(steps) == NODES_MAX
    assert steps["node-0"] == 5
    assert set(steps) - {"node-0"} == {f"node-{number}" for number in range(85, 100)}


def test_in_a_dense_ring_no_steps_of_others_are_known_but_their_losses_are() -> None:
    dense = ring(payload="dense")
    rounds, peers = [{"node": "0", "steps": 5}], [peer(f"node-{number}", loss=2.0) for number in range(1, 99)]
    told = status("node-0", trainer=trainer(steps=5, loss=1.0), ring=dense, frontier=rounds, peers=peers)
    assert steps_of(told) == {"node-0": 5}
    history = History()
    history.look(100.0, lambda: told, moment=100.0)
    history.look(102.0, lambda: told, moment=102.0)
    (_, losses, paces) = history.points[-1]
    assert (losses["node-0"], losses["node-1"], len(losses)) == (1.0, 2.0, NODES_MAX)
    assert paces == {"node-0": 0.0}


def test_a_node_that_was_started_again_counts_on() -> None:
    rows = [{"node": "node-1", "steps": 7}, {"node": "node-1", "steps": 9}, {"node": "node-1", "steps": 0}]
    assert steps_of(status("node-0", trainer=trainer(steps=1), frontier=rows)) == {"node-0": 1, "node-1": 9}
