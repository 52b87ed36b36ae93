"""What of a run lies where in a node's state directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

FOLDER: Final = "run"  # checkpoints and own updates
VOTES_NAME: Final = "votes.json"


def giving_up(state: Path) -> str:
    """The command with which a person gives up what a node that does not run has of its run; the node stays
    the same one.
    """
    return f"rm -rf {shlex.quote(str(state / FOLDER))} {shlex.quote(str(state / VOTES_NAME))}"
