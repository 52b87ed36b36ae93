"""The picture of docs/explanation/codec.md: bits per index against speed, a column for each set."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from benchmarks.codec.contenders import OURS, RAW
from benchmarks.codec.measure import Measured, SetResult

OUR_COLOUR: Final = "#c81e1e"
COLOURS: Final = {"pcodec": "#1f5fa8", "libaec": "#2a8a4a", "Roaring": "#4a4a4a", "zstd": "#b06a10"}
FASTPFOR_COLOUR: Final = "#7a4fa8"

# Where a label may stand beside its point, best first: offsets in points, horizontal and vertical alignment.
PLACES: Final = [
    *((7, height, "left", "center") for height in (0, 5, -5)),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    *((-7, height, "right", "center") for height in (0, 5, -5)),
    *((7, height, "left", "center") for height in (10, -10)),
    *((-7, height, "right", "center") for height in (10, -10)),
    *((14, height, "left", "center") for height in (16, -16, 22, -22)),
]


def draw(results: list[SetResult], path: Path) -> None:
    """Writes a PNG."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")  # no screen
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(
        2, len(results), figsize=(4.3 * len(results), 10.4), sharex="col", sharey="row", squeeze=False
    )
    for column, result in enumerate(results):
        axes[0][column].set_title(f"{result.name}\n{len_mean(result):,} indices in an update", fontsize=10)
        axes[1][column].set_xlabel("bits per index with its sign")
        for row, way in enumerate(("decode", "encode")):
            draw_points(axes[row][column], result, way)
    for row, way in enumerate(("decode", "encode")):
        axes[row][0].set_ylabel(f"{way}, million indices/s, one thread")
    figure.suptitle(
        "Left and up is better. p2psgd: from entries to bytes and back; small stars are its slower paths.\n"
        "Libraries: their own call alone, without making gaps, packing signs and the way back.",
        fontsize=9,
    )
    figure.tight_layout()
    for row, way in enumerate(("decode", "encode")):
        for column, result in enumerate(results):
            write_labels(axes[row][column], result, way)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    # A picture of few colours: a fifth of the bytes.
    image = importlib.import_module("PIL.Image")
    image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def len_mean(result: SetResult) -> int:
    return round(result.indices / result.updates)


def shown(result: SetResult) -> list[Measured]:
    """Return all contenders but the raw entries, whose 32 bits would press all others together."""
    return [each for each in result.contenders if each.name != RAW]


def speed(each: Measured, way: str) -> float:
    """In million indices per second."""
    return (each.encode if way == "encode" else each.decode) / 1e6


def colour(each: Measured) -> str:
    if not each.library:
        return OUR_COLOUR
    return COLOURS.get(each.name.partition(" ")[0], FASTPFOR_COLOUR)


def draw_points(axes: Any, result: SetResult, way: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.16, y=0.1)
    axes.grid(visible=True, which="major", alpha=0.25)
    for each in reversed(shown(result)):
        best = each is result.contenders[0]
        axes.plot(
            each.bits,
            speed(each, way),
            marker="o" if each.library else "*",
            markersize=15 if best else 6,
            color=colour(each),
            linestyle="none",
        )


def write_labels(axes: Any, result: SetResult, way: str) -> None:
    """Each label at the first place where it covers neither a point nor another label."""
    transforms = importlib.import_module("matplotlib.transforms")
    axes.figure.canvas.draw()
    taken = []
    for each in shown(result):
        x, y = axes.transData.transform((each.bits, speed(each, way)))
        half = 4 if each.library or each is not result.contenders[0] else 9
        taken.append(transforms.Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half))
    frame = axes.get_window_extent()
    for each in shown(result):
        if not each.library and each is not result.contenders[0]:
            continue
        for place in PLACES:
            text = write_label(axes, each, speed(each, way), place)
            box = text.get_window_extent()
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            if inside and not box.count_overlaps(taken):
                break
            if place is not PLACES[-1]:
                text.remove()
        taken.append(box)


def write_label(axes: Any, each: Measured, y: float, place: tuple[int, int, str, str]) -> Any:
    right, up, horizontal, vertical = place
    wide = 1 if each.library else 1.4  # a star is larger than a point
    return axes.annotate(
        each.name if each.library else OURS,
        (each.bits, y),
        xytext=(right * wide, up * wide),
        textcoords="offset points",
        ha=horizontal,
        va=vertical,
        fontsize=7.5 if each.library else 11,
        fontweight="normal" if each.library else "bold",
        color=colour(each),
        arrowprops={"arrowstyle": "-", "color": colour(each), "linewidth": 0.5} if abs(up) > 7 else None,
    )
