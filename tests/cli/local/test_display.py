from __future__ import annotations

import io
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from p2psgd.cli.local.report import Display
from p2psgd.cli.local.run import Watch
from tests.observe.statuses import lost, status, trainer


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_few_seconds() -> None:
    clock, output = Clock(), io.StringIO()
    with Display(Console(file=output, width=80), "p2psgd local, 1 node", clock) as display:
        for clock.now in (0.5, 4.9, 5.0, 5.5, 9.9, 10.0):
            display.show("training", [status(trainer=trainer(steps=1_000 if clock.now < 9 else 1_100))])
    lines = output.getvalue().splitlines()
    assert lines[0] == "p2psgd local, 1 node"
    assert [line.split(":")[0] for line in lines[1:]] == ["5 s, training", "10 s, training"]
    assert "1 training, step 1,000, 6,543 samples/s" in lines[1]


def test_a_phase_without_nodes_has_no_colon() -> None:
    clock, output = Clock(), io.StringIO()
    with Display(Console(file=output, width=80), "p2psgd.ray, run a", clock) as display:
        clock.now = 5.0
        display.show("waiting for machines", [])
    assert output.getvalue().splitlines()[1:] == ["5 s, waiting for machines"]


def test_a_log_gets_the_same_words_once_a_minute() -> None:
    clock, output = Clock(), io.StringIO()
    with Display(Console(file=output, width=80), "p2psgd local, 1 node", clock) as display:
        for second in range(0, 90, 5):
            clock.now = float(second)
            display.show("training", [status()])
        clock.now = 90.0
        display.show("stopping", [status()])
    begins = [line.split(":")[0] for line in output.getvalue().splitlines()[1:]]
    assert begins == ["5 s, training", "1 min 5 s, training", "1 min 30 s, stopping"]


def test_news_are_shown_at_once() -> None:
    clock, output = Clock(), io.StringIO()
    with Display(Console(file=output, width=80), "p2psgd local, 1 node", clock) as display:
        clock.now = 1.0
        display.show("training", [lost("node-0")], at_once=True)
    assert output.getvalue().splitlines()[1:] == [
        "1 s, training: 1 lost, 12.0 bits per index, compression 2133x; node-0: lost (killed by signal 9)"
    ]


def test_what_a_script_prints_comes_above_the_table_as_it_is() -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True, color_system=None)
    with Display(console, "p2psgd local, 1 node", Clock()) as display:
        display.show("training", [status()])
        display.say("[bold]epoch[/bold] 1", "x" * 200)
        display.say()
        display.show("training", [status()])
    before, printed, after = output.getvalue().partition("[bold]epoch[/bold] 1\n" + "x" * 200 + "\n")
    assert printed
    assert "node-0 training" in before
    assert "node-0 training" in after


def test_a_terminal_gets_a_table_that_stays() -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True, color_system=None)
    with Display(console, "p2psgd local, 1 node", Clock()) as display:
        display.show("training", [status()])
    shown = output.getvalue()
    assert "p2psgd local, 1 node, 0 s: training" in shown
    assert "node-0 training  1000" in shown


def test_a_lost_node_is_shown_without_its_last_words() -> None:
    nothing: Any = SimpleNamespace(daemons=[])
    watch = Watch(nothing, ["node-0"], nothing, nothing)
    watch.lost["node-0"] = "ended with exit code 78: this node takes part in another run"
    assert [each.waits for each in watch.statuses()] == ["lost (ended with exit code 78)"]
