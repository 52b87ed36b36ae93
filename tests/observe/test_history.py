from __future__ import annotations

import itertools

from p2psgd.observe.history import EVERY_S, NODES_MAX, POINTS_MAX, History
from p2psgd.observe.status import NodeStatus
from tests.observe.statuses import peer, status, trainer


def seen(loss: float | None, pace: float | None, *peers: tuple[float | None, float | None]) -> NodeStatus:
    rows = [peer(f"node-{number}", loss=its, steps_per_s=rate) for number, (its, rate) in enumerate(peers, 1)]
    return status("node-0", trainer=trainer(loss=loss, steps_per_s=pace), peers=rows)


def test_a_point_has_the_losses_and_paces_that_are_known() -> None:
    history = History()
    history.look(100.0, lambda: seen(None, None, (None, None)), moment=900.0)
    assert history.points == []
    history.look(100.0 + EVERY_S / 2, lambda: seen(9.0, 9.0), moment=901.0)  # not due
    history.look(102.0, lambda: seen(1.5, 10.0, (3.0, None)), moment=902.0)
    history.look(104.0, lambda: seen(None, 5.0, (3.123456, 10.0), (None, 0.0)), moment=800.0)
    assert history.points == [
        (902.0, {"node-0": 1.5, "node-1": 3.0}, {"node-0": 10.0}),
        (800.0, {"node-1": 3.123}, {"node-0": 5.0, "node-1": 10.0, "node-2": 0.0}),
    ]
    assert history.added == 2


def test_it_is_bounded_and_keeps_its_first_and_its_last_point() -> None:
    history = History()
    for now in range(20 * POINTS_MAX):
        history.look(float(now), lambda now=now: seen(float(now), 1.0), moment=now)  # type: ignore[misc]
        assert len(history.points) < POINTS_MAX
    moments = [moment for moment, _, _ in history.points]
    assert moments[0] == 0.0
    assert 20 * POINTS_MAX - moments[-1] <= 64
    assert max(after - before for before, after in itertools.pairwise(moments)) <= 128


def test_of_very_many_nodes_some_are_kept_this_one_among_them() -> None:
    history = History()
    history.look(0.0, lambda: seen(1.0, 1.0, *[(2.0, 2.0)] * 99), moment=0.0)
    (_, losses, paces) = history.points[0]
    assert len(losses) == len(paces) == NODES_MAX
    assert losses["node-0"] == paces["node-0"] == 1.0
