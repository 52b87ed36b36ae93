"""`p2psgd remove`: asks a daemon to remove a node, and waits until the view without it is decided."""

from __future__ import annotations

import time
from typing import Final

from p2psgd.base import formatting
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import printable
from p2psgd.ipc.client import ControlClient
from p2psgd.node.removal import Standing, is_removed
from p2psgd.observe.status import ViewStatus, read_part, read_status

WAIT_TIMEOUTS: Final = 12  # as long as a peer is away before it counts as gone
POLL_S: Final = 0.1
NAME_CHARACTERS_MAX: Final = 64  # as a request may have


def remove_node(client: ControlClient, text: str, *, forbid: bool) -> tuple[Standing, str]:
    """Ask the daemon to remove a node and wait for the view that says so; return how the node stands then,
    and what has happened in words.

    UsageError: refused, or admitted again at once since it still runs, or not decided within 12 failure
    timeouts, with what is missing.
    """
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX:
        raise UsageError(f"no node is called {text!r:.100}: names have 1 to {NAME_CHARACTERS_MAX} characters")
    status = read_status(client.request("status")["status"])
    before = 0 if status.view is None else status.view.number
    node: str = client.request("remove", node=text, forbid=forbid)["id"]
    wait_s = WAIT_TIMEOUTS * status.failure_timeout_s
    deadline = time.monotonic() + wait_s
    while True:
        standing = _ask(client, node)
        if is_removed(standing, forbid=forbid):
            return standing, _done(standing, forbid=forbid, before=before)
        who = printable(standing.node)
        if not forbid and standing.since > before:
            words = f"{who} still runs, and view {standing.since} has admitted it again"
            raise UsageError(f"{words}: stop it first, or give --forbid")
        if time.monotonic() > deadline:
            waited = formatting.duration(wait_s)
            waits = _missing(read_status(client.request("status")["status"]).view or ViewStatus())
            words = f"{who} is still a member after {waited}: {waits}; the members go on trying"
            raise UsageError(words, ExitCode.TEMPORARY)
        time.sleep(POLL_S)


def _ask(client: ControlClient, node: str) -> Standing:
    return read_part(Standing, client.request("member", id=node)["member"], "answer")


def _missing(view: ViewStatus) -> str:
    """Return what keeps the next view from being decided."""
    if view.waits:
        return printable(view.waits)
    total, linked = view.members_total, sum(member.linked for member in view.members)
    if linked > total // 2:
        return "it is being decided"
    return f"{linked} of {formatting.counted(total, 'member')} are linked, {total // 2 + 1} are needed"


def _done(standing: Standing, *, forbid: bool, before: int) -> str:
    who, members = printable(standing.node), formatting.counted(standing.members_total, "member")
    if standing.view == before:
        what = "is forbidden already" if standing.forbidden else "is no member now"
        return f"view {before} has {members}: {who} {what}, and there is nothing to remove"
    if forbid:
        again = "ends if it still runs, and is never admitted again"
    else:
        again = "and is admitted again if it comes back"
    return f"view {standing.view} with {members} is decided: {who} is removed, {again}"
