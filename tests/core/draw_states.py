"""Draws docs/states.md from the tables of life-cycles: `python -m tests.core.draw_states`"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from p2psgd.base.transitions import Transitions
from p2psgd.core.node_state import NODE
from p2psgd.core.peer import PEER
from p2psgd.core.readiness import READINESS
from p2psgd.core.ring.rounds import RING_PHASES
from p2psgd.core.snapshot_fetch import FETCH
from p2psgd.ipc.trainer_session import SESSION

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "states.md"
INTRODUCTION: Final = """\
# States

Each life-cycle is an enum with one table of transitions, at the head of the file that owns the state. The
code changes a state along its table only; any other move is an error of the code and ends the process. This
page is drawn from the tables by `python -m tests.core.draw_states`, and a test holds that it is up to date.
"""
# Every table with the file that owns it and what a reader should know besides.
TABLES: Final[dict[str, tuple[Transitions[Any], str]]] = {
    "p2psgd/core/node_state.py": (
        NODE,
        "What a node may do. Only a READY node trains, trims its log and proposes evictions; a node that is "
        "REPAIRING or FETCHING sends no weights and no updates. A node that is stopping stays what it is "
        "until its links are closed.",
    ),
    "p2psgd/core/readiness.py": (
        READINESS,
        "How far a node that is JOINING has come. It goes on while the weights are damaged, too.",
    ),
    "p2psgd/core/peer.py": (
        PEER,
        "One linked peer, as another node sees it, like `Progress` in etcd's Raft. `Peer.check` states what "
        "holds in each state.",
    ),
    "p2psgd/core/snapshot_fetch.py": (
        FETCH,
        "The joiner's side of a snapshot, of which one is under way at most.",
    ),
    "p2psgd/core/ring/rounds.py": (
        RING_PHASES,
        "The ring at one node, in ring mode. Rounds follow each other while it is RUNNING; `StopReason` says "
        "why a generation is over.",
    ),
    "p2psgd/ipc/trainer_session.py": (
        SESSION,
        "One connection of a trainer to its daemon, with the shared memory between them.",
    ),
}


def draw(table: Transitions[Any]) -> Iterator[str]:
    """Yield the lines of a table's diagram."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {table.first.name}"
    for state, followers in table.moves.items():
        assert isinstance(state, enum.Enum)
        for follower, cause in followers.items():
            yield f"    {state.name} --> {follower.name}: {cause.replace(';', ',')}"
        if not followers:
            yield f"    {state.name} --> [*]"
    yield "```"


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for path, (table, words) in TABLES.items():
        title = table.name[0].upper() + table.name[1:]
        lines += [f"## {title}", "", f"{words} Table: [{path}](../{path}).", "", *draw(table), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
