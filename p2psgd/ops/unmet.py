"""The part of a node's status on peers that it has never been linked with: whom it dials, and members that it
cannot reach at all. What comes from those comes through others; through whom is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from p2psgd.net.mesh import Mesh
from p2psgd.ops.replication import MemberFigures

ERROR_MAX: Final = 300  # what peers say of themselves must fit into a datagram too, in characters
PLACE_MAX: Final = 80  # and so must names of hosts
NO_ADDRESS: Final = "nobody has told an address of it"


def describe_unmet(
    mesh: Mesh, members: Mapping[int, MemberFigures], now: float, started: float
) -> list[dict[str, Any]]:
    """Their rows: first the listed ones, in the list's order. `now` and `started`: seconds, monotonic."""
    hints = {dialler.hinted: dialler for dialler in mesh.diallers if dialler.hinted is not None}
    rows, shown = [], set(mesh.news)
    for dialler in mesh.diallers:
        node = dialler.node
        if node is None:  # which node is expected there, if others have told
            places = set(dialler.host)
            node = next((each for each, hint in hints.items() if places & set(hint.host)), None)
        if dialler.ourselves or node in shown:
            continue
        if node is not None:
            shown.add(node)
        rows.append(_row(dialler.called, node, members, now - dialler.since, dialler.words))
    for node, member in members.items():
        if node not in shown and not member.linked:
            rows.append(_row("", node, members, now - started, NO_ADDRESS))
    return rows


def _row(
    called: str, node: int | None, members: Mapping[int, MemberFigures], since_s: float, words: str
) -> dict[str, Any]:
    member, called = None if node is None else members.get(node), called[:PLACE_MAX]
    return {
        "node": called if member is None else member.name,
        "id": None if node is None else f"{node:016x}",
        "address": called,
        "state": "dialling",
        "lag": None,
        "since_s": round(since_s, 1),
        "bytes_sent": 0,
        "bytes_received": 0,
        "round_trip_ms": None,
        "error": words[:ERROR_MAX],
        "through": "" if member is None else member.through,
    }
