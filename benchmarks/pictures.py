"""Draw the benches' pictures: without a screen, and into files of few colours, a fifth of the bytes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

COLOURS: Final = ("#c81e1e", "#1f5fa8", "#2a8a4a", "#b06a10", "#7a4fa8", "#4a4a4a", "#0a8f9c", "#d8609c")


def can_draw() -> bool:
    """Return whether matplotlib is installed: make .venv/.bench."""
    return importlib.util.find_spec("matplotlib") is not None


def plain_ticks(axis: Any) -> None:
    """A logarithmic axis with numbers such as 2,000 at 1, 2 and 5 of each power of ten."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(ticker.NullFormatter())


@contextmanager
def picture(path: Path, size_in: tuple[float, float], *, colours: int = 64, **cells: Any) -> Iterator[Any]:
    """matplotlib's axes to draw on, `cells` as its `subplots` takes them; written as PNG at the end."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")  # no screen
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams["axes.axisbelow"] = True  # no grid across bars
    figure, axes = pyplot.subplots(figsize=size_in, **cells)
    yield axes
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    image = importlib.import_module("PIL.Image")
    image.open(path).convert("RGB").quantize(colours).save(path, optimize=True)
