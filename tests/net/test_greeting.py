"""Who may be linked, and which of two connections stays."""

from __future__ import annotations

import itertools

import pytest

from p2psgd.net.handshake import BehindError, check_hello, newer_stays
from p2psgd.wire.messages import Hello
from p2psgd.wire.reject import PeerError


def hello(**changes: object) -> Hello:
    fields: dict[str, object] = {
        "protocol": 3,
        "node": 1,
        "incarnation": 10,
        "name": "here",
        "run": b"a" * 32,
        "weights": 100,
        "quantum_log2": -20,
        "mode": "async",
        "label": "speech",
        "rank": "",
    }
    return Hello.model_validate(fields | changes)


THEIRS = {"node": 2, "incarnation": 5, "name": "there"}


def test_two_nodes_of_one_run_may_be_linked() -> None:
    check_hello(hello(), hello(**THEIRS), newest_incarnation=5)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"node": 1, "incarnation": 10}, "self", "itself"),
        ({"node": 1, "incarnation": 11}, "identity", "state directory"),
        ({"incarnation": 2}, "superseded", "started again"),
        ({"incarnation": 4}, "behind", "a later life of there than its incarnation 4 is known, 5,"),
        ({"incarnation": 2**61 + 1}, "ahead", "set that machine's clock"),
        ({"incarnation": 2**64 - 1}, "ahead", "no clock"),
        ({"name": f"{1:016x}"}, "name", "the form of a node's id"),
        (
            {"mode": "doctor", "run": bytes(32)},
            "doctor",
            "here runs there, run 6161616161616161 .*100 weights",
        ),
        ({"mode": "doctor", "node": 1, "incarnation": 0}, "doctor", "here runs there"),  # of a node's own id
        ({"run": b"b" * 32}, "run", "seed"),
        ({"run": b"b" * 32, "weights": 99}, "run", "weights 99 and 100"),
        (
            {"run": b"b" * 32, "mode": "ring-dense"},
            "run",
            "there in mode ring-dense, here in mode async; .*the same mode, payload, rule and order",
        ),
    ],
)
def test_who_may_not_be_linked_is_told_why(changes: dict[str, object], reason: str, words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        check_hello(hello(), hello(**(THEIRS | changes)), newest_incarnation=5, linked_incarnation=3)
    assert caught.value.label == reason


def test_a_life_behind_another_that_is_not_linked_is_told_how_far() -> None:
    with pytest.raises(BehindError) as caught:
        check_hello(hello(), hello(**THEIRS), newest_incarnation=2**40)
    assert caught.value.newest == 2**40


def test_another_run_is_refused_with_both_fingerprints() -> None:
    with pytest.raises(PeerError, match=f"{b'b'.hex() * 8} and {b'a'.hex() * 8}"):
        check_hello(hello(), hello(**THEIRS, run=b"b" * 32), newest_incarnation=0)


def test_both_sides_keep_the_same_of_two_connections() -> None:
    """Node 1 dialled `a`, node 2 dialled `b`; each side may have seen either of them first."""
    for first_here, first_there in itertools.product("ab", repeat=2):
        kept = []
        for ours, theirs, first in ((1, 2, first_here), (2, 1, first_there)):
            dialled = {"a": ours == 1, "b": ours == 2}
            second = "b" if first == "a" else "a"
            newer = newer_stays(
                ours=ours, theirs=theirs, held_dialled=dialled[first], new_dialled=dialled[second]
            )
            kept.append(second if newer else first)
        assert kept == ["a", "a"]


def test_a_side_that_dials_again_has_lost_its_first_connection() -> None:
    assert newer_stays(ours=1, theirs=2, held_dialled=True, new_dialled=True)
    assert newer_stays(ours=1, theirs=2, held_dialled=False, new_dialled=False)
