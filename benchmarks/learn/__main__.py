"""Runs the cases that have no result yet, and writes docs/explanation/learning.*."""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch

from benchmarks.learn import page, plot, results
from benchmarks.learn.cases import CASES, Case
from benchmarks.learn.launch import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learn", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="GLOB", help="cases with such names; may be given several times"
    )
    parser.add_argument("--again", action="store_true", help="also cases that have a result")
    parser.add_argument("--list", action="store_true", help="the names of these cases, and no more")
    parser.add_argument("--page", action="store_true", help="only write page and pictures anew")
    arguments = parser.parse_args()
    cases = [case for case in CASES if any(fnmatch(case.name, each) for each in arguments.only or ["*"])]
    if arguments.list:
        known = results.read()
        print(*(f"{case.name}{_note(case, known)}" for case in cases), sep="\n")
        return
    if not cases:
        sys.exit("no case has such a name; --list has all names")
    if not arguments.page:
        try:
            run_all(cases, again=arguments.again)
        except KeyboardInterrupt:
            sys.exit("interrupted: what was measured is kept, and the next run goes on there")
    plot.draw(results.read())
    page.write(results.read())


def run_all(cases: list[Case], *, again: bool) -> None:
    """Run the cases one after the other; each result is kept as soon as it is known."""
    for number, case in enumerate(cases, 1):
        known = results.read()
        if (case in known and not again) or not results.needed(known, case):
            continue
        rate = (
            case.rate if case.rate is not None else results.best_rate(known, case.task, case.way, case.nodes)
        )
        if rate is None:
            print(f"{case.name}: no rate, run the search first", flush=True)
            continue
        print(f"{number}/{len(cases)} {case.name}, at {time.strftime('%H:%M:%S')} ...", flush=True)
        found = run(case, rate)
        results.keep(case, found)
        words = f"loss {found.loss:.4f}, {found.sent_bytes / 1e3:,.0f} kB, {found.ran_s:.0f} s"
        print(f"    rate {rate:g}: {words}", flush=True)


def _note(case: Case, known: results.Results) -> str:
    if case in known:
        return f"  {known[case].loss:.4f}"
    return "" if results.needed(known, case) else "  only if the best rate is at the edge"


if __name__ == "__main__":
    main()
