"""Write the tables of docs/explanation/codec.md: the text between two marks is replaced, the rest stays."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.codec.libraries import LIBRARIES
from benchmarks.codec.measure import SetResult
from benchmarks.codec.verdicts import verdicts
from benchmarks.pages import processor

BEGIN: Final = "<!-- figures: written by python -m benchmarks codec --page -->"
END: Final = "<!-- end of the figures -->"


def write(results: list[SetResult], path: Path) -> None:
    """ValueError for a page without the two marks."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} lacks the lines {BEGIN!r} and {END!r}")
    sections = (line for each in results for line in section(each))
    text = "\n".join([begin, "", surroundings(), "", *sections, end])
    path.write_text(before + text + after, encoding="utf-8")


def surroundings() -> str:
    """Return what the figures depend on beside the code."""
    packages = ", ".join(f"{name} {version_of(name)}" for name in ("numpy", *LIBRARIES))
    return f"Measured on one thread of {processor()}, Python {platform.python_version()}, {packages}."


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def section(result: SetResult) -> Iterator[str]:
    """Heading, table, verdicts of one set."""
    count = f"{result.indices:,} indices in {result.updates:,} updates"
    yield f"### {result.name}: {count}, {'recorded' if result.real else 'drawn at random'}"
    yield ""
    yield "| | bits per index | encode | decode | encode, from entries | decode, to entries |"
    yield "|---|---:|---:|---:|---:|---:|"
    for each in result.contenders:
        joined = each.joined(result.numpy)
        speeds = (each.encode, each.decode, joined.encode, joined.decode)
        name = each.name if each.library else f"**{each.name}**"
        yield f"| {name} | {each.bits:.3f} | " + " | ".join(f"{speed / 1e6:,.0f}" for speed in speeds) + " |"
    yield ""
    yield (
        f"Over all updates: p2psgd {result.bits:.3f} bits per index, one Rice parameter {result.rice:.3f}, "
        f"the bound {result.bound:.3f}."
    )
    yield ""
    for figure in verdicts(result):
        yield f"- {figure.name.partition(': ')[2]}: {figure.value:.3g} {figure.unit} ({figure.note})"
    yield ""
