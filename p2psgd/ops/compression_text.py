"""Compression as text for people: a line on the whole, a row for each tensor, and what to look at.

Pure functions of the descriptions of compression.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from p2psgd.ops import numerals
from p2psgd.ops.compression import BITS
from p2psgd.ops.figures import number, printable, section, whole

ROWS_MAX: Final = 50
NAME_WIDTH_MAX: Final = 40
LABEL_WIDTH: Final = 14
ADVICE: Final = (
    "To choose tau: density falls and bits per index rise as tau grows. Raise it while the loss after as\n"
    "many mini-batches stays as good; lower it where training slows down, for a single tensor if only its\n"
    "density is near 0."
)
TENSOR_COLUMNS: Final = ("weights", "indices", "share", "density", "recent", "step")
SLICE_COLUMNS: Final = ("updates", "mini-batches", "density", "bits/index", *BITS, "coded")

Part = Mapping[str, Any]


def render_compression(description: Part) -> str:
    """A node's own updates, as `p2psgd status --compression` shows them."""
    total, recent = section(description, "total"), section(description, "recent")
    if not whole(total, "updates"):
        return "this node has made no update yet"
    lines = facts_of("all updates", total)
    if 0 < whole(recent, "updates") < whole(total, "updates"):
        lines += facts_of("the latest", recent)
    return "\n".join([*lines, "", *tensor_rows(description), "", ADVICE])


def render_slices(slices: Sequence[Part]) -> list[str]:
    """A table of a run's slices, from its beginning to its end; bits are per index."""
    rows = [
        [
            numerals.grouped(whole(part, "updates")),
            numerals.grouped(whole(part, "mini_batches")),
            fraction(number(part, "density")),
            numerals.decimals(number(part, "bits_per_index"), 2),
            *(numerals.decimals(bits, 2) for bits in _bits_per_index(part).values()),
            fraction(_share(part, "sign_coded_blocks", "blocks")),
        ]
        for part in slices
    ]
    return _table(SLICE_COLUMNS, rows)


def facts_of(label: str, part: Part) -> list[str]:
    """Two lines on some updates as a whole."""
    mini_batches = numerals.counted(whole(part, "mini_batches"), "mini-batch", "mini-batches")
    density, per_index = fraction(number(part, "density")), number(part, "bits_per_index")
    return [
        f"{label:<{LABEL_WIDTH}}{numerals.grouped(whole(part, 'updates'))} in {mini_batches}, "
        f"density {density}, {numerals.decimals(per_index, 2)} bits per index",
        f"{'':<{LABEL_WIDTH}}= {bits_of(part)}",
    ]


def bits_of(part: Part) -> str:
    """Where the bits of an index go, how often signs are coded and payloads dense."""
    bits = " + ".join(f"{value:.2f} {name}" for name, value in _bits_per_index(part).items() if value)
    coded = _share(part, "sign_coded_blocks", "blocks")
    signs = "" if coded is None else f"; signs coded in {fraction(coded)} of the blocks"
    dense = _share(part, "dense_updates", "updates")
    also = f", {fraction(dense)} of the updates dense" if dense else ""
    return f"{bits}{signs}{also}"


def tensor_rows(description: Part) -> list[str]:
    """The largest tensors, in the run's order, and how many are left out."""
    tensors = list(description.get("tensors") or ())
    largest = sorted(range(len(tensors)), key=lambda place: -whole(tensors[place], "weights"))[:ROWS_MAX]
    shown = [tensors[place] for place in sorted(largest)]
    rows = [
        [
            numerals.grouped(whole(row, "weights")),
            numerals.grouped(whole(row, "indices")),
            fraction(number(row, "share")),
            fraction(number(row, "density")),
            fraction(number(row, "recent_density")),
            numerals.grouped(whole(row, "step") or None),
        ]
        for row in shown
    ]
    names = [_shortened(printable(row.get("name", "?"))) for row in shown]
    left_out = max(whole(description, "tensors_total"), len(tensors)) - len(shown)
    more = [f"and {numerals.counted(left_out, 'smaller tensor')}"] if left_out else []
    return _table(TENSOR_COLUMNS, rows, "tensor", names) + more


def fraction(value: float | None) -> str:
    """A fraction of one with three digits that matter: 12.3 %, 0.0456 %."""
    return numerals.UNKNOWN if value is None else f"{100 * value:.3g} %"


def _bits_per_index(part: Part) -> dict[str, float]:
    bits, indices = section(part, "bits"), whole(part, "indices")
    return {name: whole(bits, name) / indices if indices else 0.0 for name in BITS}


def _share(part: Part, some: str, every: str) -> float | None:
    return whole(part, some) / whole(part, every) if whole(part, every) else None


def _shortened(name: str) -> str:
    """The end of a long name: beginnings are alike."""
    return name if len(name) <= NAME_WIDTH_MAX else "..." + name[3 - NAME_WIDTH_MAX :]


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], corner: str = "", names: Sequence[str] = ()
) -> list[str]:
    """Right-aligned columns under their headings; `names` stand on the left, if there are any."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    left = max(map(len, (corner, *names)))
    lines = []
    for name, row in zip((corner, *(names or [""] * len(rows))), (columns, *rows), strict=True):
        cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append(f"{name:<{left}}  {cells}" if left else cells)
    return lines
