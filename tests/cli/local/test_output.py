"""`p2psgd local` finds in each node's log what the training script has printed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from p2psgd.cli.local.output import LOG_NAME, READ_BYTES, ScriptOutput, last_report
from p2psgd.cli.local.plan import Plan
from p2psgd.cli.options import Output
from p2psgd.node.trainer_output import LINES_KEPT
from p2psgd.observe.logs import TextFormatter


class Node:
    """The log of one node, written as its daemon does."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.log = directory / LOG_NAME

    def write(self, *lines: str, output: bool) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            for line in lines:
                record = logging.makeLogRecord({"msg": line, "levelno": logging.INFO, "output": output})
                file.write(f"{TextFormatter().format(record)}\n")


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    return [Node(tmp_path / f"node-{index}") for index in range(2)]


def plan(tmp_path: Path, output: Output) -> Plan:
    return Plan(nodes=2, recipe_name="", recipe=None, state=tmp_path, keep_state=True, output=output)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (Output.FIRST, ["epoch 1"]),
        (Output.ALL, ["node-0: epoch 1", "node-1: epoch 2"]),
        (Output.NONE, []),
    ],
)
def test_what_scripts_print_is_told_from_what_their_daemons_say(
    tmp_path: Path, nodes: list[Node], output: Output, shown: list[str]
) -> None:
    scripts = ScriptOutput.of(plan(tmp_path, output))
    assert scripts.read() == []
    for number, node in enumerate(nodes, 1):
        node.write("waiting for | a trainer", output=False)
        node.write(f"epoch {number}", output=True)
    assert scripts.read() == shown
    assert scripts.read() == []
    assert [scripts.shows("node-0"), scripts.shows("node-1")] == [bool(shown), output is Output.ALL]


def test_a_line_is_read_once_it_is_whole(tmp_path: Path, nodes: list[Node]) -> None:
    scripts = ScriptOutput.of(plan(tmp_path, Output.FIRST))
    nodes[0].write("loss 0.5", output=True)
    whole = nodes[0].log.read_bytes()
    nodes[0].log.write_bytes(whole[:-4])
    assert scripts.read() == []
    nodes[0].log.write_bytes(whole)
    assert scripts.read() == ["loss 0.5"]


def test_much_at_once_is_read_turn_by_turn(tmp_path: Path, nodes: list[Node]) -> None:
    scripts = ScriptOutput.of(plan(tmp_path, Output.FIRST))
    lines = [f"line {number}" for number in range(READ_BYTES // 8)]
    nodes[0].write(*lines, output=True)
    first = scripts.read()
    assert first == lines[: len(first)]
    assert sum(map(len, first)) < READ_BYTES
    assert scripts.read_all() == lines[len(first) :]
    assert scripts.read_all() == []


def test_a_line_beyond_all_limits_is_passed_over(tmp_path: Path, nodes: list[Node]) -> None:
    scripts = ScriptOutput.of(plan(tmp_path, Output.FIRST))
    nodes[0].write("x" * 3 * READ_BYTES, output=False)
    nodes[0].write("epoch 1", output=True)
    assert scripts.read_all() == ["epoch 1"]


def test_the_last_report_is_the_last_traceback_or_the_last_lines(tmp_path: Path, nodes: list[Node]) -> None:
    assert last_report(nodes[0].log) == []
    nodes[0].write(*(f"epoch {number}" for number in range(100)), output=True)
    assert last_report(nodes[0].log) == [f"epoch {number}" for number in range(100 - LINES_KEPT, 100)]
    trace = ["Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: no"]
    for _ in range(2):
        nodes[0].write(*trace, output=True)
        nodes[0].write("the trainer crashed", output=False)
    assert last_report(nodes[0].log) == trace
