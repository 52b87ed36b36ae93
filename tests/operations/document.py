"""What docs/how-to/operations.md has a person type: its blocks marked `sh title="WHERE"`, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """`where`: desk, each (of the VMs), or the name of one. `section`: the heading above it."""

    section: str
    where: str
    script: str
    line: int


def read_blocks(page: Path) -> list[Block]:
    """All of a page's blocks of commands; ValueError for one that does not say where it is typed."""
    return list(_blocks(page.read_text(encoding="utf-8").splitlines(), page.name))


def _blocks(lines: list[str], name: str) -> Iterator[Block]:
    section, opened, where = "", 0, ""
    for number, line in enumerate(lines, 1):
        if opened:
            if line == "```":
                yield Block(section, where, "\n".join(lines[opened : number - 1]), opened)
                opened = 0
        elif line.startswith("```"):
            told = re.fullmatch(r'```sh title="(\S+)"', line)
            if told is None:
                raise ValueError(f"{name} line {number}: {line!r} does not say where it is typed")
            opened, where = number, told[1]
        elif line.startswith("## "):
            section = line[3:]
