"""Round, order, and who is waited for, of one node and of all."""

from typing import Any

from p2psgd.observe.status import RingStatus
from p2psgd.observe.text import ring_lines, ring_words
from tests.observe.statuses import bare, ring, status

WAITS = "round 1235 has waited for 3.1 s for node-2's trainer"


def lines(**changes: Any) -> list[str]:
    return [line.words for line in ring_lines(RingStatus(**ring(**changes))) if line.words]


def test_a_node_says_its_round_and_its_order() -> None:
    assert lines() == [
        "sparse, round 1,234 is complete, generation 2 of this view is under way",
        "node-0 > node-1 > node-2",
    ]
    assert lines(running=False, active=False, payload="dense") == [
        "dense, round 1,234 is complete, generation 2 of this view has ended, this node only follows: "
        "it has no trainer",
        "node-0 > node-1 > node-2",
    ]


def test_before_the_first_generation_there_is_no_order() -> None:
    waits = {"waiting_for": "two nodes", "since_s": 9.0}
    found = lines(round=0, generation=0, order=[], nodes=0, running=False, **waits)
    assert found == ["sparse, round 0 is complete", "two nodes"]


def test_a_wait_is_said_once_it_is_news() -> None:
    assert len(lines(waiting_for=WAITS, since_s=0.9)) == 2
    assert lines(waiting_for=WAITS, since_s=3.1)[2] == WAITS


def test_an_asynchronous_node_says_nothing() -> None:
    assert list(ring_lines(None)) == []
    assert ring_words([status(), bare("node-1")]) == ""


def test_of_all_nodes_the_foremost_and_the_longest_wait_are_told() -> None:
    waiting = ring(waiting_for=WAITS, since_s=3.1)
    longer = ring(round=1_235, waiting_for="round 1236 has waited for 4.0 s for node-1", since_s=4.0)
    statuses = [status("node-0", ring=waiting), status("node-2", ring=longer), bare("node-1")]
    assert ring_words(statuses) == (
        "round 1,235; ring node-0 > node-1 > node-2; node-2: round 1236 has waited for 4.0 s for node-1"
    )


def test_when_all_have_finished_nobody_waits() -> None:
    over = ring(waiting_for=WAITS, since_s=9.0, active=False)
    assert ring_words([status(ring=over)] * 3) == "round 1,234; ring node-0 > node-1 > node-2"


def test_a_long_ring_is_cut_short_and_names_are_made_printable() -> None:
    many = ring(order=["\x1b[2J", *(f"node-{number}" for number in range(1, 40))], nodes=64)
    words = ring_words([status(ring=many)])
    assert "\x1b" not in words
    assert words.endswith("> node-7 and 56 more")
