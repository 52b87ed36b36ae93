"""A chaos run from the first daemon to the last: rounds of faults, and a quiet point after each.

One thread, no loop: every turn looks at the processes, and once a second at their statuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.interruption import Interruption
from p2psgd.observe.status import ROWS_MAX
from tests.chaos import account, counts
from tests.chaos.chaos import Chaos, Deed
from tests.chaos.checks import fault_of_ending, faults_in_log, forgotten, growth
from tests.chaos.events import within
from tests.chaos.faults import kind
from tests.chaos.nodes import Life, Node
from tests.chaos.quiet import QuietPoint, find_equal
from tests.chaos.schedule import ROUND_S, Round, draw_rounds
from tests.chaos.trainer import PAUSE
from tests.lan import Lan

TURN_S: Final = 0.05
LOOK_EVERY_S: Final = 1.0
TRAINING_WITHIN_S: Final = 60.0
LAST_ROUND_S: Final = ROUND_S + 10.0  # with its quiet point: none is begun when less time is left
STOPPED_WITHIN_S: Final = 45.0
INTERRUPTED: Final = "interrupted; once more kills all at once"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    minutes: float
    seed: int
    nodes: int
    mode: str
    spare: bool


class Harness:
    """One run; `say` is given a line now and then."""

    def __init__(
        self,
        options: Options,
        *,
        lan: Lan,
        nodes: Sequence[Node],
        directory: Path,
        interruption: Interruption,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._lan, self._nodes, self._say = options, lan, nodes, say
        self._pause = directory / PAUSE
        self._interruption = interruption
        self._began = time.monotonic()
        self._looked = 0.0
        self._rounds: list[tuple[list[Deed], float]] = []
        self._quiet_points: list[QuietPoint] = []
        self._findings: list[str] = []
        self._counted = np.zeros((counts.NODES, counts.STRETCHES))

    def execute(self) -> dict[str, Any]:
        """Go through all rounds and return the account of them."""
        end = self._began + 60 * self._options.minutes
        for node in self._nodes:
            node.start(self._began)
        self._wait_for_training()
        self._be_quiet()
        options = self._options
        for faults in draw_rounds(options.seed, options.nodes, spare=options.spare):
            if self._findings:
                break
            self._round(faults)
            self._be_quiet()
            if time.monotonic() + LAST_ROUND_S > end:
                break
        self._stop()
        return account.build(
            seed=options.seed,
            began=self._began,
            wall_s=time.monotonic() - self._began,
            nodes=self._nodes,
            rounds=self._rounds,
            quiet_points=self._quiet_points,
            sums=counts.sums({node.number: node.stretches() for node in self._nodes}, self._counted),
            findings=self._findings,
        )

    def _round(self, faults: Round) -> None:
        began = time.monotonic()
        chaos = Chaos(self._lan, self._nodes, faults, began)
        self._rounds.append((chaos.deeds, began + ROUND_S))
        try:
            while (now := time.monotonic()) < began + ROUND_S and not self._interruption.requested:
                for deed in chaos.turn(now):
                    self._say(f"{deed.fault!r}{'' if deed.hit else ' found nobody'}")
                self._turn()
                time.sleep(TURN_S)
        finally:
            chaos.heal(time.monotonic())

    def _wait_for_training(self) -> None:
        until = self._began + TRAINING_WITHIN_S
        while not all(node.stamps() for node in self._nodes) and not self._interruption.requested:
            self._turn()
            time.sleep(TURN_S)
            if time.monotonic() > until:
                self._find(f"not all trainers were at work within {TRAINING_WITHIN_S:.0f} s")
                return

    def _be_quiet(self) -> None:
        evaluation = self._begin_pause()
        point = find_equal(self._nodes, began=self._began, turn=self._turn, evaluation=evaluation)
        self._quiet_points.append(point)
        for finding in point.findings:
            self._find(finding)
        if len(self._quiet_points) > 1 and 0 < len(point.frontier) < ROWS_MAX:  # a status lists no more
            for finding in forgotten(self._quiet_points[-2].frontier, point.frontier):
                self._find(finding)
        if point.counted is not None and (under_way := counts.UNDER_WAY_MAX.get(self._options.mode)):
            self._count(point.counted, under_way=under_way)
        for node in self._nodes:
            if node.life is not None:
                self._read_log(node, node.life)
                for finding in growth(node.life.memories):
                    self._find(f"{node.name} {finding}")
        if not point.findings:
            accuracy = "" if point.test_accuracy is None else f"{100 * point.test_accuracy:.1f} % right, "
            what = f"{sum(point.frontier.values())} updates of {len(point.frontier)} lives"
            if point.evaluation is not None:
                what = f"{point.evaluation} evaluations"
            self._say(f"equal after {point.took_s:.1f} s: {what}, {accuracy}digest {point.digest}")
        self._pause.unlink()

    def _begin_pause(self) -> int | None:
        """Have trainers make no mini-batch more; in mode `closure`, no evaluation but those that one of them
        has made or may have begun, up to this one.
        """
        last = None
        if self._options.mode == "closure":
            last = 1 + max(node.evaluated().last for node in self._nodes)
        whole = self._pause.with_suffix(".new")
        whole.write_text("" if last is None else f"{last}")
        whole.replace(self._pause)
        return last

    def _count(self, counted: NDArray[np.float64], *, under_way: float) -> None:
        """Compare what counts in the replica with what the trainers have noted."""
        self._counted = counted
        for node in self._nodes:
            here = dict(enumerate(counted[node.number].tolist()))
            lossy = not self._options.spare and any(life.code for life in node.lives)
            for finding in counts.miscounted(node.stretches(), here, under_way=under_way, lossy=lossy):
                self._find(f"{node.name}: {finding}")

    def _stop(self) -> None:
        """End all daemons cleanly, after the last quiet point; where none was to lose anything, one after the
        other, and the last one has all that there is.
        """
        self._begin_pause()
        if self._options.spare and self._options.mode in counts.UNDER_WAY_MAX and not self._findings:
            for node in self._nodes[:0:-1]:
                self._stop_all([node])
            self._count_last(self._nodes[0])
        self._stop_all(self._nodes)

    def _count_last(self, last: Node) -> None:
        """Compare all that was ever made with what the one node that is left has."""
        until, before = time.monotonic() + STOPPED_WITHIN_S, None
        while time.monotonic() < until:
            self._turn()
            status = last.look() or {}
            owners = status.get("owners") or {}
            now = [(row["id"], row["incarnation"], row["sequence"]) for row in status.get("frontier", [])]
            if now == before and now and not owners.get("waiting") and owners.get("owners", 1) == 1:
                self._count(counts.counted(last.replica().coordinates), under_way=0.0)
                return
            before = now
            time.sleep(LOOK_EVERY_S)
        self._find(f"{last.name} alone did not come to rest within {STOPPED_WITHIN_S:.0f} s")

    def _stop_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            node.stop(None)
        until = time.monotonic() + STOPPED_WITHIN_S
        while any(node.life for node in nodes) and time.monotonic() < until:
            self._turn()
            time.sleep(TURN_S)
        for node in nodes:
            if node.life is not None:
                self._find(f"{node.name} did not stop within {STOPPED_WITHIN_S:.0f} s")

    def _turn(self) -> None:
        now = time.monotonic()
        if self._interruption.requested and INTERRUPTED not in self._findings:
            self._find(INTERRUPTED)
        for node in self._nodes:
            if (ended := node.tend(now)) is not None:
                self._note_end(node, ended)
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            for node in self._nodes:
                node.look()

    def _note_end(self, node: Node, life: Life) -> None:
        lines = self._read_log(node, life)
        assert life.code is not None
        last_line = lines[-1] if lines else ""
        if found := self._fault_of_ending(node, life, last_line):
            self._find(f"{node.name} {found}")
        elif life.code > 0:
            self._say(f"{node.name} ended with exit code {life.code}: {last_line}")

    def _fault_of_ending(self, node: Node, life: Life, last_line: str) -> str | None:
        assert life.code is not None
        noted = {event.kind for event in within(node.events(), life.began_at, life.ended_at)}
        return fault_of_ending(
            life.code, life.asked, last_line, self._kinds(), answered=bool(life.status), noted=noted
        )

    def _read_log(self, node: Node, life: Life) -> list[str]:
        lines = life.new_lines()
        for line in faults_in_log(lines, self._kinds()):
            self._find(f"{node.name} says: {line}")
        return lines

    def _kinds(self) -> set[str]:
        """The kinds of fault of this round and the one before."""
        return {kind(deed.fault) for deeds, _ in self._rounds[-2:] for deed in deeds}

    def _find(self, words: str) -> None:
        self._findings.append(words)
        self._say(f"FAILED: {words}")
