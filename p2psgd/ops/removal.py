"""`p2psgd remove`: which node a person means, and waiting until the view without it is decided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from typing import Any, Final

from p2psgd.core.frontier import Origin
from p2psgd.core.node_id import name_node, parse_node_id
from p2psgd.core.view import View
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ops import numerals
from p2psgd.ops.figures import Status, number, printable, section, whole

WAIT_PATIENCES: Final = 12  # as long as a peer is away before it counts as gone
POLL_S: Final = 0.1
NAME_CHARACTERS_MAX: Final = 64  # as a request may have


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
    """The node id that `text`, a name or 16 hexadecimal digits, stands for; `linked` are this node's peers.

    UsageError with a sentence if it stands for none, for several or for this node `me`; if the node runs, so
    that it would be admitted again; if it can never be decided, since one of two members is away that would
    have to agree (see `View.quorum`). It need not be a member: then there may be nothing to do, see
    `is_removed`.
    """
    if view.number == 0:
        raise UsageError("the run is not founded yet, so there is no view to remove a node from")
    node = _find_node(text, names, view)
    if node == me:
        raise UsageError("a node does not remove itself: stop it, or ask another member's daemon to do it")
    if me not in view.lives:
        raise UsageError("this node is no member now, so it has no vote: ask a member's daemon")
    if not forbid and node in linked:
        raise UsageError(
            f"{name_node(node, names)} runs and is linked with this node, so it would be admitted again: stop"
            " it first (if it has just died: wait until the status shows that it is away), or give --forbid"
        )
    if is_removed(describe_standing(node, view, names), forbid=forbid):
        return node
    if len(view.members) == 2 and not view.quorum(linked | {me}, two_nodes):
        (other,) = view.lives.keys() - {me}
        both = "both must" if two_nodes == "stall" else "the one with the lower id must"
        raise UsageError(
            f"{name_node(other, names)} is away, and of two members {both} agree to a change "
            f'(two_nodes = "{two_nodes}"): start it again, or p2psgd export the weights of this node and '
            "begin another run with them"
        )
    return node


def _find_node(text: str, names: Mapping[int, str], view: View) -> int:
    stated = parse_node_id(text)
    if stated is not None and stated in view.lives:  # whatever others are called
        return stated
    named = sorted(node for node, name in names.items() if name == text)
    if len(named) > 1:
        ids = ", ".join(f"{node:016x}" for node in named)
        raise UsageError(f"{len(named)} nodes are called {text!r:.70}: give the id of one of them, {ids}")
    if named:
        return named[0]
    if stated is not None:
        return stated
    nameless = [f"{member:016x}" for member in sorted(view.lives.keys() - names.keys())]
    known = numerals.listed([*sorted(map(repr, names.values())), *nameless][:20])
    raise UsageError(f"no node is called {text!r:.70}: known are {known}; an id has 16 hexadecimal digits")


def describe_standing(node: int, view: View, names: Mapping[int, str]) -> dict[str, Any]:
    """How a node stands in a view, as the daemon answers it; `since` 0: it is no member."""
    since = view.member_since(Origin(node, view.lives[node])) if node in view.lives else 0
    return {
        "node": name_node(node, names),
        "id": f"{node:016x}",
        "view": view.number,
        "members_total": len(view.members),
        "since": since,
        "forbidden": node in view.forbidden,
    }


def remove_node(client: ControlClient, text: str, *, forbid: bool) -> str:
    """Ask the daemon to remove a node and wait for the view that says so; return what has happened.

    UsageError: refused, or admitted again at once since it still runs, or not decided within 12 patiences,
    with what is missing.
    """
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX:
        raise UsageError(f"no node is called {text!r:.100}: names have 1 to {NAME_CHARACTERS_MAX} characters")
    status: Status = client.request("status")["status"]
    before = whole(section(status, "view"), "number")
    node: str = client.request("remove", node=text, forbid=forbid)["id"]
    wait_s = WAIT_PATIENCES * (number(status, "patience_s") or 0.0)
    deadline = time.monotonic() + wait_s
    while True:
        standing: Status = client.request("member", id=node)["member"]
        if is_removed(standing, forbid=forbid):
            return _done(standing, forbid=forbid, before=before)
        since = whole(standing, "since")
        if not forbid and since > before:
            words = f"{_who(standing)} still runs, and view {since} has admitted it again"
            raise UsageError(f"{words}: stop it first, or give --forbid")
        if time.monotonic() > deadline:
            waited = numerals.duration(wait_s)
            waits = _missing(section(client.request("status")["status"], "view"))
            words = f"{_who(standing)} is still a member after {waited}: {waits}; the members go on trying"
            raise UsageError(words, ExitCode.TEMPORARY)
        time.sleep(POLL_S)


def is_removed(standing: Status, *, forbid: bool) -> bool:
    """The view that this tells of is without the node, and forbids it if it shall."""
    return not whole(standing, "since") and (not forbid or bool(standing.get("forbidden")))


def _who(standing: Status) -> str:
    return printable(standing.get("node", "?"))


def _missing(view: Status) -> str:
    """What keeps the next view from being decided."""
    if view.get("waits"):
        return printable(view["waits"])
    total = whole(view, "members_total")
    linked = sum(bool(member.get("linked")) for member in view.get("members") or ())
    if linked > total // 2:
        return "it is being decided"
    return f"{linked} of {numerals.counted(total, 'member')} are linked, {total // 2 + 1} are needed"


def _done(standing: Status, *, forbid: bool, before: int) -> str:
    members = numerals.counted(whole(standing, "members_total"), "member")
    if whole(standing, "view") == before:
        what = "is forbidden already" if forbid else "is no member now"
        return f"view {before} has {members}: {_who(standing)} {what}, and there is nothing to remove"
    if forbid:
        again = "ends if it still runs, and is never admitted again"
    else:
        again = "and is admitted again if it comes back"
    decided = f"view {whole(standing, 'view')} with {members} is decided"
    return f"{decided}: {_who(standing)} is removed, {again}"
