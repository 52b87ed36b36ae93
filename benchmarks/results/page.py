"""Write docs/explanation/results.md from the sections of all benches that have figures. Not edited by hand.

    python -m benchmarks.results.page

A bench takes part by its module in SECTIONS, which has `section() -> str`: Markdown that begins with a
heading of level 2, names the command that measured it, machine, versions and seeds, and ends without a
newline; an empty string while nothing has been measured. It reads its own figures, NAME.json beside the page,
and draws its pictures itself. When it has new figures it calls `write()`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

PAGE: Final = Path("docs/explanation/results.md")
SECTIONS: Final = ("benchmarks.paper.section", "benchmarks.rivals.section")  # in the order of the page
INTRODUCTION: Final = """\
# Results

This page compares p2psgd, on this project's own data, with the published method and with other systems.
The benchmarks that each section names write it; all figures are in the JSON files beside this page."""


def write(path: Path = PAGE) -> None:
    """The whole page, of all sections that have something to say."""
    sections = (importlib.import_module(module).section() for module in SECTIONS)
    parts = list(filter(None, sections)) or ["Nothing has been measured yet."]
    path.write_text("\n\n".join([INTRODUCTION, *parts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
