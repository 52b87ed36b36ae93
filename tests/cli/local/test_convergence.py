from __future__ import annotations

from p2psgd.cli.local.verify import Convergence, Frontier, frontier_of, who_lacks_what
from p2psgd.observe.status import read_status

A, B = ("aa", 1), ("bb", 1)
NAMES = {A: "node-0", B: "node-1"}


def frontier(**applied: int) -> Frontier:
    return Frontier({{"a": A, "b": B}[name]: count for name, count in applied.items()}, NAMES)


def test_a_status_gives_the_frontier_and_the_names() -> None:
    entries = [
        {"node": "aa", "id": "aa", "incarnation": 1, "sequence": 7, "digest": "00"},
        {"node": "node-1", "id": "bb", "incarnation": 1, "sequence": 0, "digest": "00"},
    ]
    status = {"node": "node-0", "id": "aa", "incarnation": 1, "frontier": entries}
    assert frontier_of(read_status(status)) == Frontier({A: 7}, NAMES)
    assert frontier_of(read_status({"node": "node-0"})) == Frontier({}, {})


def test_who_is_behind_is_said_by_node_and_origin() -> None:
    frontiers = {"node-0": frontier(a=12, b=5), "node-1": frontier(b=5), "node-2": frontier(a=12, b=4)}
    assert who_lacks_what(frontiers) == [
        "node-1 lacks 12 updates of node-0",
        "node-2 lacks 1 update of node-1",
    ]


def test_in_a_dense_ring_a_node_is_behind_by_rounds_of_nobody() -> None:
    ring, names = ("0000000000000000", 0), {("0000000000000000", 0): "0000000000000000"}
    frontiers = {"node-0": Frontier({ring: 2**32 + 7}, names), "node-1": Frontier({ring: 2**32 + 6}, names)}
    assert who_lacks_what(frontiers) == ["node-1 has not completed the last round of the ring"]


def test_equal_frontiers_count_only_when_they_stay() -> None:
    convergence = Convergence(60, now=0)
    convergence.look({"node-0": frontier(a=1), "node-1": frontier(a=1)}, now=1)
    assert not convergence.reached
    convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=2)}, now=2)
    assert not convergence.reached
    convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=2)}, now=3)
    assert convergence.reached


def test_where_updates_follow_by_themselves_equal_frontiers_must_stay_for_longer_but_not_for_ever() -> None:
    convergence = Convergence(60, now=0, settled_s=2.5)
    for now in (1, 2, 3):
        convergence.look({"node-0": frontier(a=1), "node-1": frontier(a=1)}, now)
    assert not convergence.reached
    for now in (4, 5, 6, 7):
        convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=2)}, now)
    assert (convergence.reached, convergence.equal_at) == (True, 5)
    seen: list[bool] = []
    for now in range(8, 70):  # an owner that publishes again and again
        convergence.look({"node-0": frontier(a=now // 2), "node-1": frontier(a=now // 2)}, now)
        seen.append(convergence.reached)
    assert seen.index(True) + 8 == 1 + 60


def test_equal_but_not_yet_everywhere_is_not_reached() -> None:
    convergence = Convergence(60, now=0)
    for now in range(5):
        convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=1)}, now)
    assert not convergence.reached


def test_progress_anywhere_starts_the_limit_anew() -> None:
    convergence = Convergence(60, now=0)
    convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=1)}, now=50)
    assert not convergence.stalled(now=109)
    assert convergence.stalled(now=110)
    convergence.look({"node-0": frontier(a=3), "node-1": frontier(a=1)}, now=111)
    assert not convergence.stalled(now=112)


def test_a_lost_node_is_no_longer_waited_for() -> None:
    convergence = Convergence(60, now=0)
    convergence.look({"node-0": frontier(a=2), "node-1": frontier(a=1)}, now=1)
    convergence.look({"node-0": frontier(a=2)}, now=2)
    convergence.look({"node-0": frontier(a=2)}, now=3)
    assert convergence.reached
