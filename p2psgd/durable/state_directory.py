"""What of a run lies where in a node's state directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

FOLDER: Final = "run"  # checkpoints and own updates
VOTES_NAME: Final = "votes.json"
NODE_NAME: Final = "node.json"  # id, name and life


def giving_up(state: Path) -> str:
    """The command with which a person gives up what a node that does not run has of its run; the node stays
    the same one.
    """
    return _removing(state, FOLDER, VOTES_NAME)


def becoming_another(state: Path) -> str:
    """What a person does with a node that must not go on as itself, since its votes are lost, and what that
    costs: the end of a sentence. The id must be another, for votes are the node's, in whichever life.
    """
    export = f"p2psgd checkpoint export FILE --state {shlex.quote(str(state))}"
    return (
        f"`{_removing(state, NODE_NAME, FOLDER, VOTES_NAME)}` and a start make it a new node with the "
        "weights of its peers; what of its own updates no peer has is then lost, and without peers the "
        f"weights are, unless `{export}` has saved them; `p2psgd remove NODE` on a peer takes the former "
        "node out, and with --tls the new one needs a certificate of its own"
    )


def _removing(state: Path, *names: str) -> str:
    return " ".join(["rm -rf", *(shlex.quote(str(state / name)) for name in names)])
