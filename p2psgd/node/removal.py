"""Removal of a node: which node a person means, whether it is possible, and how the node stands in a view."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from p2psgd.base import formatting
from p2psgd.base.errors import UsageError
from p2psgd.core.frontier import Origin, name_node, parse_node_id
from p2psgd.core.view import View
from p2psgd.observe.status import Part

NAMED_MAX: Final = 128  # nodes of one name in a sentence


def choose_removal(
    text: str,
    *,
    forbid: bool,
    me: int,
    names: Mapping[int, str],
    view: View,
    linked: Set[int],
    two_nodes: str,
) -> int:
    """Return the node id that `text`, a name or 16 hexadecimal digits, stands for; `linked` are this node's
    peers.

    UsageError with a sentence if it stands for none, for several or for this node `me`; if the node runs, so
    that it would be admitted again; if it can never be decided, since one of two members is away that would
    have to agree (see `View.quorum`). It need not be a member: then there may be nothing to do, see
    `is_removed`.
    """
    if view.number == 0:
        raise UsageError("the cluster has not formed yet, so there is no view to remove a node from")
    node = _find_node(text, names, view)
    if node == me:
        raise UsageError("a node does not remove itself: stop it, or ask another member's daemon to do it")
    if me not in view.incarnations:
        raise UsageError("this node is not a member now, so it has no vote: ask a member's daemon")
    if not forbid and node in linked:
        raise UsageError(
            f"{name_node(node, names)} runs and is linked with this node, so it would be admitted again: stop"
            " it first (if it has just died: wait until the status shows that it is away), or give --forbid"
        )
    if is_removed(standing_of(node, view, names), forbid=forbid):
        return node
    if len(view.members) == 2 and not view.quorum(linked | {me}, two_nodes):
        (other,) = view.incarnations.keys() - {me}
        both = "both must" if two_nodes == "stall" else "the one with the lower id must"
        raise UsageError(
            f"{name_node(other, names)} is away, and of two members {both} agree to a change "
            f'(two_nodes = "{two_nodes}"): start it again, or p2psgd export the weights of this node and '
            "begin another run with them"
        )
    return node


def _find_node(text: str, names: Mapping[int, str], view: View) -> int:
    stated = parse_node_id(text)
    if stated is not None and stated in view.incarnations:  # whatever others are called
        return stated
    named = sorted(node for node, name in names.items() if name == text)
    if len(named) > 1:
        ids = ", ".join(f"{node:016x} ({_standing_words(node, view)})" for node in named[:NAMED_MAX])
        raise UsageError(f"{len(named)} nodes are called {text!r:.70}: give the id of one of them, {ids}")
    if named:
        return named[0]
    if stated is not None:
        return stated
    nameless = [f"{member:016x}" for member in sorted(view.incarnations.keys() - names.keys())]
    known = formatting.listed([*sorted(map(repr, names.values())), *nameless][:20])
    raise UsageError(f"no node is called {text!r:.70}: known are {known}; an id has 16 hexadecimal digits")


def _standing_words(node: int, view: View) -> str:
    if node in view.incarnations:
        return "a member"
    return "removed for good" if node in view.forbidden else "no member"


class Standing(Part):
    """The standing of a node in the latest view, as the daemon reports it; `since` 0: it is not a member."""

    node: str = "?"
    id: str = ""
    view: int = 0
    members_total: int = 0
    since: int = 0
    forbidden: bool = False


def standing_of(node: int, view: View, names: Mapping[int, str]) -> Standing:
    """Return how a node stands in a view."""
    since = view.member_since(Origin(node, view.incarnations[node])) if node in view.incarnations else 0
    return Standing(
        node=name_node(node, names),
        id=f"{node:016x}",
        view=view.number,
        members_total=len(view.members),
        since=since or 0,
        forbidden=node in view.forbidden,
    )


def is_removed(standing: Standing, *, forbid: bool) -> bool:
    """Return whether the view is without the node, and forbids it if `forbid`."""
    return not standing.since and (not forbid or standing.forbidden)
