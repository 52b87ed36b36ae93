"""Runs the experiments and prints measured beside wanted; needs root."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.pictures import can_draw
from benchmarks.reliability import EXPERIMENTS, Report, page

TOOLS: Final = ("ip", "tc", "setpriv")
VERDICTS: Final = {True: "met", False: "MISSED", None: ""}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=EXPERIMENTS, help="this one; may be given several times"
    )
    parser.add_argument("--dry", action="store_true", help="leave the figures in docs/ as they are")
    arguments = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        parser.error(f"network namespaces need root, and {', '.join(missing or TOOLS)}")
    if not can_draw():
        parser.error("the picture needs matplotlib: make .venv/.bench")
    passed = True
    for name in arguments.only or EXPERIMENTS:
        before = os.getloadavg()[0]
        directory = Path(tempfile.mkdtemp(prefix=f"p2psgd-{name}-"))
        try:
            report: Report = importlib.import_module(f"benchmarks.reliability.{name}").run(directory)
        except BaseException:
            print(f"{name} failed; the nodes' logs are in {directory}", file=sys.stderr)
            raise
        shutil.rmtree(directory)
        load = (before, os.getloadavg()[0])
        print(f"{name}: {page.surroundings(load)}")
        for row in report.rows:
            wanted = f"  wanted {row.wanted}: {VERDICTS[row.met]}" if row.wanted else ""
            print(f"  {row.what}: {row.measured}{wanted}", flush=True)
        passed = passed and all(row.met is not False for row in report.rows)
        if not arguments.dry:
            page.keep(name, report, load)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
