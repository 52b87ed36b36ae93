"""Search for the best setting of each way, run the cases and write docs/explanation/rivals*; needs root."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import importlib.util
import shutil
import subprocess
import sys
import time
from collections import Counter
from typing import Final

from benchmarks.results import page as results_page
from benchmarks.ring.hosts import can_shape
from benchmarks.rivals.cases import LAN_MBIT, Case, Setting, Task, Way
from benchmarks.rivals.leftovers import directory_of, ended_in_order, remove_leftovers
from benchmarks.rivals.measure import WATCHED_S, Outcome, measure
from benchmarks.rivals.processors import NoControlGroups
from benchmarks.rivals.results import Results, surroundings
from benchmarks.rivals.starting import why_not
from benchmarks.rivals.tasks import TASKS

SHORT_S: Final = 20.0
FAILURES_MAX: Final = 2  # of a way, one after the other, until it is given up for this time
FAILURES: Final = (AssertionError, OSError, ValueError, subprocess.SubprocessError)  # of one run


def main() -> None:
    arguments, parser = parse()
    tasks = [task for task in TASKS.values() if arguments.task in (None, task.name)]
    if arguments.page:
        results_page.write()
        return
    if not can_shape() or shutil.which("setpriv") is None:
        parser.error("hosts need root, and ip, tc and setpriv")
    if importlib.util.find_spec("torch") is None:
        parser.error("PyTorch is not installed: `make rivals` sets up all that is needed")
    pattern = arguments.only or (f"* {LAN_MBIT} all 1" if arguments.short else "*")
    chosen = {task: [each for each in task.cases if fnmatch.fnmatch(each.name, pattern)] for task in tasks}
    if not any(chosen.values()):
        names = ", ".join(case.name for task in tasks for case in task.cases)
        parser.error(f"no case is named {pattern!r}; there are {names}")
    failures: Counter[Way] = Counter()
    try:
        with ended_in_order():
            remove_leftovers()
            for task, cases in chosen.items():
                if not cases:
                    continue
                results = Results.read(task)
                if arguments.short:
                    try_shortly(cases, results)
                    continue
                if words := results.of_another_machine(surroundings()):
                    parser.error(words)
                table = Table(results, again=arguments.again)
                table.fill([] if arguments.search else cases, ways_of(task, cases))
                failures += table.failures
    except NoControlGroups as error:
        sys.exit(f"{error}")
    if failures:
        sys.exit(f"{failures.total()} runs failed, see above; the same command tries them again")


def parse() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return what the command line says, and what refuses it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--task", choices=TASKS, help="one of the tasks; default: all")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="cases whose names match, such as 'p2psgd 100 *'; of the search those of the same ways",
    )
    parser.add_argument("--search", action="store_true", help="only search for the settings")
    parser.add_argument("--again", action="store_true", help="also what has been measured already")
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"{SHORT_S:.0f} s of each case, by default of each way at {LAN_MBIT} Mbit/s; nothing is searched"
        " for or written",
    )
    parser.add_argument("--page", action="store_true", help="only write the page from what is in the JSON")
    return parser.parse_args(), parser


def ways_of(task: Task, cases: list[Case]) -> list[Way]:
    """In their order."""
    wanted = {case.way.name for case in cases}
    return [way for way in task.ways.values() if way.name in wanted]


def try_shortly(cases: list[Case], results: Results) -> None:
    """Run each case shortly, with the best setting, or with the second of its way before any search."""
    for case in cases:
        if words := why_not(case.way.module):
            print(f"{case.name}: {words}")
            continue
        setting = results.best(case.way) or case.way.settings[1]
        limit_s = SHORT_S + (WATCHED_S if case.fault == "killed" else 0.0)
        report(case.name, run(results.task, dataclasses.replace(case, limit_s=limit_s), setting))


class Table:
    """Table of results to fill, and how far it is."""

    def __init__(self, results: Results, *, again: bool) -> None:
        self._results, self._again = results, again
        self.failures: Counter[Way] = Counter()
        self._in_a_row: Counter[Way] = Counter()
        results.machine = surroundings()

    def fill(self, cases: list[Case], ways: list[Way]) -> None:
        """Run the cases; one that fails is left out, and the rest goes on."""
        try:
            self._search_all(ways)
            self._run_all(cases)
        finally:
            self._results.write()
            results_page.write()

    def _search_all(self, ways: list[Way]) -> None:
        for way in ways:
            words = why_not(way.module)
            self._results.why_not.pop(way.name, None)
            if words:
                print(f"{way.name}: {words}", file=sys.stderr)
                self._results.why_not[way.name] = words
            else:
                self._search(way)

    def _run_all(self, cases: list[Case]) -> None:
        if self._again:
            for case in cases:
                self._results.runs.pop(case.name, None)
        left_s = sum(each.limit_s for each in cases if self._results.needed(each))
        print(f"the cases: {left_s / 60:.0f} min at most", flush=True)
        begin = time.monotonic()
        for case in cases:
            if not self._results.needed(case):
                continue
            setting = self._results.best(case.way)
            outcome = None if setting is None else self._try(case.name, case, setting)
            if outcome is None:
                continue
            self._results.runs[case.name] = outcome
            report(case.name, outcome)
            self._results.write()
            left_s = sum(each.limit_s for each in cases if self._results.needed(each))
            print(
                f"  {(time.monotonic() - begin) / 60:.0f} min, the rest in {left_s / 60:.0f} at most",
                flush=True,
            )

    def _search(self, way: Way) -> None:
        search_s = self._results.task.search_s
        if self._again:
            self._results.search.pop(way.name, None)
        for setting in way.settings:
            if self._results.tried(way, setting) is None:
                name = f"{way.name}, {setting}"
                print(f"trying {name}: {search_s:.0f} s at most", flush=True)
                outcome = self._try(name, Case(way, way.search_mbit, limit_s=search_s), setting)
                if outcome is None:
                    continue
                self._results.search.setdefault(way.name, []).append(outcome)
                report(name, outcome)
                self._results.write()

    def _try(self, name: str, case: Case, setting: Setting) -> Outcome | None:
        """Run one case; None if it fails, or its way has failed too often."""
        if self._in_a_row[case.way] >= FAILURES_MAX:
            print(f"{name}: left out, {case.way.name} has failed {FAILURES_MAX} times", file=sys.stderr)
            return None
        try:
            outcome = run(self._results.task, case, setting)
        except FAILURES as error:
            self.failures[case.way] += 1
            self._in_a_row[case.way] += 1
            self._results.failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(f"{name} failed: {self._results.failed[name]}", file=sys.stderr, flush=True)
            self._results.write()
            return None
        self._in_a_row[case.way] = 0
        self._results.failed.pop(name, None)
        return outcome


def run(task: Task, case: Case, setting: Setting) -> Outcome:
    """In a directory of its own, of which the logs stay where something fails."""
    with directory_of(case.way.name) as directory:
        try:
            return measure(task, case, setting, directory)
        except FAILURES:
            print(f"{case.name}: the logs are in {directory}", file=sys.stderr)
            raise


def report(name: str, outcome: Outcome) -> None:
    """For the terminal."""
    reached = f"loss {outcome.loss:.3f} after {outcome.ran_s:.0f} s, {outcome.samples:,.0f} samples"
    if outcome.target_s is not None:
        reached = f"loss {outcome.target} after {outcome.target_s:.1f} s, {outcome.samples:,.0f} samples"
    pauses = ", ".join("for good" if each is None else f"{each:.1f} s" for each in outcome.pauses_s)
    step = "no" if outcome.step_s is None else f"{1e3 * outcome.step_s:.0f}"
    print(
        f"{name}: {reached}; {step} ms and {outcome.step_bytes:,.0f} bytes a mini-batch"
        + ("" if outcome.computing is None else f"; {100 * outcome.computing:.0f} % of the time computing")
        + (f"; longest pause after the kill: {pauses}" if pauses else "")
        + (f"; {outcome.words}" if outcome.words else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
