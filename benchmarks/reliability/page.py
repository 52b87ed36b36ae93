"""Write the tables of docs/explanation/reliability_figures.md: one for each experiment; the prose stays."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.reliability import Report

PAGE: Final = Path("docs/explanation/reliability_figures.md")
DATA: Final = Path("docs/explanation/reliability_figures.json")
VERDICTS: Final = {True: "met", False: "**missed**", None: ""}


def surroundings(load: tuple[float, float]) -> str:
    """Return what the figures depend on beside the code."""
    cores = os.cpu_count()
    return (
        f"{cores} processors shared with other work, Python {platform.python_version()}; "
        f"load {load[0]:.1f} before, {load[1]:.1f} after"
    )


def keep(name: str, report: Report, load: tuple[float, float]) -> None:
    """Write one experiment's figures into the data, and the table anew."""
    known: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    known[name] = {"machine": surroundings(load), **asdict(report)}
    lines = [f"{json.dumps(each)}: {json.dumps(figures)}" for each, figures in known.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for each, figures in known.items():
        begin, end = f"<!-- {each} -->", f"<!-- end of {each} -->"
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"{PAGE} lacks the lines {begin!r} and {end!r}")
        text = "\n".join([before + begin, "", *table(figures), "", end]) + after
    PAGE.write_text(text, encoding="utf-8")


def table(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['what']} | {row['measured']} | {row['wanted']} | {VERDICTS[row['met']]} |"
        for row in found["rows"]
    ]
    return [
        "| | measured | wanted | |",
        "|---|---|---|---|",
        *rows,
        "",
        f"{found['machine'][0].upper()}{found['machine'][1:]}.",
    ]
