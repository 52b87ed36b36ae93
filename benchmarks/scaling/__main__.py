"""Runs the cases and prints measured beside predicted; needs root."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.reliability.__main__ import TOOLS
from benchmarks.ring.hosts import can_shape
from benchmarks.scaling import CASES, WANTED_RATIO, Case, page
from benchmarks.scaling.measure import Measured, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, help="this one; may be given several times")
    parser.add_argument("--seconds", type=float, default=30.0, help="that each case is looked at (30)")
    parser.add_argument("--dry", action="store_true", help="leave the figures in docs/ as they are")
    parser.add_argument(
        "--page", action="store_true", help="only write page and picture from what is in the JSON"
    )
    arguments = parser.parse_args()
    if arguments.page:
        page.write(page.read())
        return
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not can_shape() or missing:
        parser.error(f"network namespaces need root, and {', '.join(missing or TOOLS)}")
    alone: dict[tuple[int, float], Measured] = {}
    met = True
    for case in CASES:
        if case.name not in (arguments.only or page.NAMES):
            continue
        key, load = (case.weights, case.computing_s), os.getloadavg()[0]
        if key not in alone:
            alone[key] = run(case.alone, arguments.seconds)
        result = page.Result(case, run(case, arguments.seconds), alone[key], load)
        print(result.words(), flush=True)
        met = met and not (case.wanted and result.ratio < WANTED_RATIO)
        if not arguments.dry:
            page.keep(result)
    sys.exit(not met)


def run(case: Case, seconds: float) -> Measured:
    """In a directory of its own, which stays where something fails."""
    directory = Path(tempfile.mkdtemp(prefix=f"p2psgd-scaling-{case.name.replace(' ', '-')}-"))
    try:
        measured = measure(case, directory / "run", seconds)
    except BaseException:
        print(f"{case.name} failed; the nodes' logs are in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)
    return measured


if __name__ == "__main__":
    main()
