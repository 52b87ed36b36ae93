"""Reads what the training scripts of a local run print, from the logs of their nodes while these are written.

A node's daemon has cut that into clean lines and limited it before (node/trainer_output.py), so this module
can follow at leisure: it reads at most READ_BYTES of a log in one turn, and the rest in the next ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from p2psgd.cli.local.plan import Plan
from p2psgd.cli.options import Output
from p2psgd.node.trainer_output import LINES_KEPT, crash_report
from p2psgd.observe.logs import output_of

LOG_NAME = "log.txt"
READ_BYTES = 64 * 1024
TAIL_BYTES = 1024 * 1024  # enough for LINES_KEPT of the longest lines, escaped


class ScriptOutput:
    """The output of nodes, by their names and log files, as it comes; `named`: each line with its node."""

    def __init__(self, places: Mapping[str, Path], *, named: bool = False) -> None:
        self._places = places
        self._named = named
        self._offsets = dict.fromkeys(places, 0)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the output of the nodes that a plan shows."""
        shown = {Output.FIRST: 1, Output.ALL: plan.nodes, Output.NONE: 0}[plan.output]
        places = {name: plan.directory(index) / LOG_NAME for index, name in enumerate(plan.names[:shown])}
        return cls(places, named=plan.output is Output.ALL)

    def shows(self, node: str) -> bool:
        """Return whether this node's output is shown."""
        return node in self._places

    def read(self) -> list[str]:
        """Return the lines that have come since the last call, as far as one turn shows them."""
        lines: list[str] = []
        for node, place in self._places.items():
            data = _whole_lines(place, self._offsets[node])
            self._offsets[node] += len(data)
            begins = f"{node}: " if self._named else ""
            lines += [begins + line for line in _output_lines(data)]
        return lines

    def read_all(self) -> list[str]:
        """Return all lines that are there and were not returned yet."""
        lines: list[str] = []
        while more := self._offsets.copy():
            lines += self.read()
            if self._offsets == more:
                break
        return lines


def last_report(log: Path) -> list[str]:
    """Return what a node's script printed at its end, by the node's log: its traceback, if it had one, and
    LINES_KEPT lines at most.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    return crash_report(_output_lines(data)[-LINES_KEPT:])


def _whole_lines(log: Path, offset: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read(READ_BYTES)
    except OSError:
        return b""  # the node has not begun
    if b"\n" not in data and len(data) == READ_BYTES:
        return data  # no line is so long: it is passed over
    return data[: data.rfind(b"\n") + 1]


def _output_lines(data: bytes) -> list[str]:
    lines = map(output_of, data.decode(errors="replace").split("\n"))
    return [line for line in lines if line is not None]
