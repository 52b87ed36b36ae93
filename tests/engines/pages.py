"""The blocks of commands in the pages of docs/engines, and a PATH with stand-ins for what they run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.daemons import P2PSGD
from tests.operations.machines import CHECKOUT

PAGES: Final = CHECKOUT / "docs" / "engines"
PROGRAM: Final = f'exec {shlex.join(P2PSGD)} "$@"'


def blocks_of(page: str, language: str = "") -> list[str]:
    """Return the blocks of a page in this language, by default those of commands, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)
    return [words for marked, words in found if marked == language]


def path_with(programs: Mapping[str, str], folder: Path) -> str:
    """Make programs, by name, each a script for sh, in a new folder; return a PATH that begins with it."""
    folder.mkdir(parents=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
