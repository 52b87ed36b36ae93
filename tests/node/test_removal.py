from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.node.removal import choose_removal, is_removed, standing_of
from tests.observe.replications import ME, OTHER, THIRD

NAMES = {1: "here", 2: "node-2", 3: "twin", 4: "twin", 5: "gone"}
VIEW = View(6, (Origin(1, 1), Origin(2, 1), Origin(3, 1), Origin(0xABCDEF0123456789, 1)), frozenset({5}))


def choose(
    text: str, *, forbid: bool = False, me: int = 1, view: View = VIEW, linked: Set[int] = frozenset()
) -> int:
    return choose_removal(
        text, forbid=forbid, me=me, names=NAMES, view=view, linked=linked, two_nodes="stall"
    )


def test_a_node_is_named_by_its_name_or_its_id() -> None:
    assert choose("node-2") == 2
    assert choose("0000000000000003") == 3
    assert choose("abcdef0123456789") == choose("ABCDEF0123456789") == 0xABCDEF0123456789


def test_whoever_is_to_be_forbidden_need_not_be_a_member_nor_dead() -> None:
    assert choose("00000000000000ff", forbid=True) == 0xFF
    assert choose("node-2", forbid=True) == choose("node-2", forbid=True, linked={2}) == 2


def test_whoever_is_no_member_any_more_can_be_named_and_needs_nobodys_vote() -> None:
    assert choose("gone") == choose("gone", forbid=True) == 5
    two = View(7, (Origin(1, 1), Origin(2, 1)), frozenset({5}))
    assert choose("gone", view=two) == choose("gone", view=two, forbid=True) == 5


@pytest.mark.parametrize(
    ("text", "changes", "sentence"),
    [
        (
            "node-9",
            {},
            "no node is called 'node-9': known are 'gone', 'here', 'node-2', 'twin', 'twin' and abc",
        ),
        ("0x2", {}, "an id has 16 hexadecimal digits"),
        (
            "twin",
            {},
            "2 nodes are called 'twin': give the id of one of them, 0000000000000003 (a member), "
            "0000000000000004 (no member)",
        ),
        (
            "twin",
            {"view": View(6, VIEW.members, frozenset({4})), "forbid": True},
            "0000000000000003 (a member), 0000000000000004 (removed for good)",
        ),
        ("here", {}, "a node does not remove itself"),
        ("node-9", {"view": View()}, "the cluster has not formed yet"),
        (
            "node-2",
            {"linked": {2}},
            "node-2 runs and is linked with this node, so it would be admitted again",
        ),
        ("gone", {"linked": {5}}, "gone runs and is linked with this node, so it would be admitted again"),
        ("node-2", {"me": 4}, "this node is not a member now, so it has no vote"),
    ],
)
def test_what_cannot_be_is_a_sentence(text: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        choose(text, **changes)


@pytest.mark.parametrize(
    ("me", "two_nodes", "linked", "refusal"),
    [
        (1, "stall", set(), "node-2 is away, and of two members both must agree"),
        (2, "lower-id", set(), "here is away, and of two members the one with the lower id must agree"),
        (1, "lower-id", set(), None),
    ],
)
@pytest.mark.parametrize("forbid", [False, True])
def test_what_two_members_can_never_decide_is_refused_at_once(
    me: int, two_nodes: str, linked: set[int], refusal: str | None, *, forbid: bool
) -> None:
    view = View(6, (Origin(1, 1), Origin(2, 1)))
    other = 3 - me

    def ask() -> int:
        return choose_removal(
            NAMES[other],
            forbid=forbid,
            me=me,
            names=NAMES,
            view=view,
            linked=linked,
            two_nodes=two_nodes,
        )

    if refusal is None:
        assert ask() == other
    else:
        with pytest.raises(UsageError, match=refusal):
            ask()


@pytest.mark.parametrize(
    ("view", "forbid", "removed"),
    [
        (View(6, (ME, OTHER, THIRD)), False, False),
        (View(7, (ME, OTHER)), False, True),
        (View(7, (ME, OTHER)), True, False),
        (View(7, (ME, OTHER), frozenset({3})), True, True),
    ],
)
def test_it_is_done_when_the_view_says_so(view: View, forbid: bool, removed: bool) -> None:
    assert is_removed(standing_of(3, view, {}), forbid=forbid) is removed


def test_nobody_is_overlooked_in_a_long_view() -> None:
    members = tuple(Origin(node, 1) for node in range(1, 201))
    crowd = View(9, members, frozenset(range(1000, 1200)), since=(9,) * 200)
    assert not is_removed(standing_of(150, crowd, {}), forbid=False)
    assert is_removed(standing_of(1199, crowd, {}), forbid=True)


def test_an_id_of_a_member_is_no_name_of_another() -> None:
    names = {1: "here", 2: "b", 3: f"{2:016x}"}
    chosen = choose_removal(
        f"{2:016x}", forbid=True, me=1, names=names, view=VIEW, linked=frozenset(), two_nodes="stall"
    )
    assert chosen == 2
