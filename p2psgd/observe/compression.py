"""Compression of updates: counted, as plain data and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base import formatting
from p2psgd.base.formatting import printable
from p2psgd.observe.status import BITS, BitCounts, Compression, TensorSums, UpdateSums
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# The use of the bits of updates and the tensors that they change: figures to choose tau by.
#
# Sums only; ratios are made of them where they are described. Density is per mini-batch, not per update: a
# mini-batch whose tensors have several steps makes several updates, and one in which no weight exceeds its
# step makes none. An update costs one pass over the payload (`codec.measure`) and a binary search for each
# tensor.


FRAME_BITS: Final = 8 * (PREFIX.size + UPDATE_HEADER_BYTES)  # of each update, before its payload
MEASURED: Final = ("remainder", "quotient", "sign", "header", "dense", "blocks", "sign_coded_blocks")
COUNTS: Final = ("updates", "steps", "indices", "dense_updates", "blocks", "sign_coded_blocks")
RECENT_STEPS: Final = 100  # the recent sums cover the last 100 to 200 that made updates

# Described one by one, the largest: 200 bytes each fit into an answer, with the names, which all came in one
# request of 64 KiB.
TENSORS_MAX: Final = 256

Tensors = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(slots=True, eq=False)
class Tally:
    """The sums over some updates of a run of T tensors; bits add up to those of the updates' frames."""

    tensor_indices: NDArray[np.int64]  # (T,)
    tensor_thresholds: NDArray[
        np.int64
    ]  # (T,) quanta, of the last update that touched the tensor; 0: none did
    sums: Counter[str] = field(default_factory=Counter)  # by COUNTS and BITS, the names in `UpdateSums`

    @classmethod
    def empty(cls, tensors: int) -> Tally:
        """Return the sums over no updates."""
        return cls(np.zeros(tensors, np.int64), np.zeros(tensors, np.int64))

    def add(self, later: Tally) -> None:
        """Add the sums over updates that came after these."""
        self.tensor_indices += later.tensor_indices
        np.copyto(self.tensor_thresholds, later.tensor_thresholds, where=later.tensor_thresholds > 0)
        self.sums.update(later.sums)


class OwnCompression:
    """A counter of a node's own updates: all of them, and the recent ones."""

    def __init__(self) -> None:
        self._tensors: Tensors = ()  # known from `begin` on

    def begin(self, tensors: Tensors, *, shards: int = 0, steps: int = 0) -> None:
        """Begin with a run that counts `shards`; earlier incarnations have made `steps`."""
        sizes = [math.prod(shape) for _, shape in tensors]
        ends = np.cumsum(sizes, dtype=np.int64)
        self._tensors = tensors
        self._coordinates = int(ends[-1]) + codec.COUNTS_PER_SHARD * shards
        followed = ends if shards else ends[:-1]
        self._firsts = (followed << 1).astype(np.uint32)  # the least word behind each tensor, if there is one
        self._places = np.zeros(len(sizes) + 1, np.int64)
        self._steps = steps  # of the last update
        self._steps_made = 0  # of the current sums, without those that made no update
        self._older, self._previous, self._current = (Tally.empty(len(sizes)) for _ in range(3))

    def count(self, update: OwnUpdateMade) -> None:
        """Add one more update."""
        words, made = update.words, max(update.steps - self._steps, 0)
        if made:
            if self._steps_made == RECENT_STEPS:
                self._older.add(self._previous)
                self._previous, self._current = self._current, Tally.empty(len(self._tensors))
                self._steps_made = 0
            self._steps = update.steps
            self._steps_made += 1
        measured, tally = codec.measure(update.payload, len(words), self._coordinates), self._current
        for name in MEASURED:
            tally.sums[name] += getattr(measured, name)
        tally.sums["header"] += FRAME_BITS
        tally.sums["updates"] += 1
        tally.sums["dense_updates"] += measured.blocks == 0
        tally.sums["indices"] += len(words)
        tally.sums["steps"] += made
        self._places[-1] = len(words)
        self._places[1 : 1 + len(self._firsts)] = words.searchsorted(self._firsts)
        counts = self._places[1:] - self._places[:-1]
        tally.tensor_indices += counts
        tally.tensor_thresholds[counts > 0] = update.magnitude

    def total(self) -> Tally:
        """Return the sums over all updates."""
        return self._sum(self._older, self._previous, self._current)

    def recent(self) -> Tally:
        """Return the sums over the last 100 to 200 mini-batches that made updates."""
        return self._sum(self._previous, self._current)

    def describe(self, *, tensors_max: int = TENSORS_MAX) -> Compression | None:
        """Describe the sums as a part of the status; None before the run is known."""
        if not self._tensors:
            return None
        return describe_compression(self.total(), self.recent(), self._tensors, tensors_max=tensors_max)

    def _sum(self, *tallies: Tally) -> Tally:
        total = Tally.empty(len(self._tensors))
        for tally in tallies:
            total.add(tally)
        return total


# ----------------------------------------------------------------------------
# Compression as a part of the status (status.py): counts that add up, and the ratios made of them.
#
# Of a node's own updates (its status) or of all nodes' (the report of a local run).


def describe_sums(sums: Mapping[str, int], weights: int) -> UpdateSums:
    """Return the sums over some updates of a run of `weights` weights, and the ratios made of them."""
    bits = BitCounts(**{name: sums.get(name, 0) for name in BITS})
    indices, steps = sums.get("indices", 0), sums.get("steps", 0)
    return UpdateSums(
        **{name: sums.get(name, 0) for name in COUNTS},
        density=_ratio(indices, weights * steps),
        bits=bits,
        bits_per_index=_ratio(bits.total, indices),
    )


def describe_compression(
    total: Tally, recent: Tally, tensors: Tensors, *, tensors_max: int = TENSORS_MAX
) -> Compression:
    """Return all updates and the recent ones, as a whole and for each of the largest tensors."""
    sizes = [math.prod(shape) for _, shape in tensors]
    whole = [describe_sums(tally.sums, sum(sizes)) for tally in (total, recent)]
    if not tensors_max:
        return Compression(total=whole[0], recent=whole[1])
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:tensors_max]
    rows = []
    for place in sorted(largest):
        size, indices = sizes[place], int(total.tensor_indices[place])
        rows.append(
            TensorSums(
                name=tensors[place][0],
                weights=size,
                indices=indices,
                threshold=int(total.tensor_thresholds[place]),
                share=_ratio(indices, total.sums["indices"]),
                density=_ratio(indices, size * total.sums["steps"]),
                recent_density=_ratio(int(recent.tensor_indices[place]), size * recent.sums["steps"]),
            )
        )
    return Compression(total=whole[0], recent=whole[1], tensors_total=len(sizes), tensors=rows)


def describe_nodes(nodes: Iterable[Compression | None], weights: int) -> Compression | None:
    """Return the updates of several nodes of one run as one, without the recent ones; None if there are none.

    A node that could only tell its total (lost before it was asked for more) is missing in the tensors.
    """
    sums, full_sums, rows = Counter[str](), Counter[str](), dict[str, list[TensorSums]]()
    tensors_total = 0
    for node in filter(None, nodes):
        counts = {name: getattr(node.total, name) for name in COUNTS} | node.total.bits.by_name()
        sums.update(counts)
        full_sums.update(counts if node.tensors else {})
        tensors_total = max(tensors_total, node.tensors_total)
        for row in node.tensors:
            rows.setdefault(row.name, []).append(row)
    if not sums["updates"]:
        return None
    tensors = []
    for name, each in rows.items():
        size, found = each[0].weights, sum(row.indices for row in each)
        threshold = next((row.threshold for row in reversed(each) if row.threshold), 0)
        share, density = _ratio(found, full_sums["indices"]), _ratio(found, size * full_sums["steps"])
        tensors.append(
            TensorSums(
                name=name, weights=size, indices=found, threshold=threshold, share=share, density=density
            )
        )
    return Compression(total=describe_sums(sums, weights), tensors_total=tensors_total, tensors=tensors)


def _ratio(part: int, of: int) -> float | None:
    return part / of if of else None


# ----------------------------------------------------------------------------
# Compression as text for people: a line on the whole, a row for each tensor, and advice.
#
# Pure functions of the descriptions above.


ROWS_MAX: Final = 50
NAME_WIDTH_MAX: Final = 40
LABEL_WIDTH: Final = 14
ADVICE: Final = (
    "To choose tau: density falls and bits per index rise as tau grows. Raise it while the loss after as\n"
    "many steps stays as good; lower it where training slows down, for a single tensor if only its\n"
    "density is near 0."
)
TENSOR_COLUMNS: Final[tuple[str, ...]] = (
    "tensor",
    "weights",
    "indices",
    "share",
    "density",
    "recent",
    "threshold",
)


def render_compression(compression: Compression | None) -> str:
    """Return a node's own updates as `p2psgd status --compression` shows them."""
    if compression is None or not compression.total.updates:
        return "this node has made no update yet"
    total, recent = compression.total, compression.recent
    lines = facts_of("all updates", total)
    if 0 < recent.updates < total.updates:
        lines += facts_of("the latest", recent)
    return "\n".join([*lines, "", *tensor_rows(compression), "", ADVICE])


def facts_of(label: str, part: UpdateSums) -> list[str]:
    """Return two lines on some updates as a whole."""
    steps = formatting.counted(part.steps, "step")
    return [
        f"{label:<{LABEL_WIDTH}}{formatting.grouped(part.updates)} in {steps}, "
        f"density {fraction(part.density)}, {formatting.decimals(part.bits_per_index, 2)} bits per index",
        f"{'':<{LABEL_WIDTH}}= {bits_of(part)}",
    ]


def bits_of(part: UpdateSums) -> str:
    """Return where the bits of an index go, how often signs are coded and payloads dense."""
    bits = " + ".join(f"{value:.2f} {name}" for name, value in _bits_per_index(part).items() if value)
    coded = _ratio(part.sign_coded_blocks, part.blocks)
    signs = "" if coded is None else f"; signs coded in {fraction(coded)} of the blocks"
    dense = _ratio(part.dense_updates, part.updates)
    also = f", {fraction(dense)} of the updates dense" if dense else ""
    return f"{bits}{signs}{also}"


def tensor_rows(compression: Compression) -> list[str]:
    """Return the largest tensors, in the run's order, and how many are left out."""
    tensors = compression.tensors
    largest = sorted(range(len(tensors)), key=lambda place: -tensors[place].weights)[:ROWS_MAX]
    table = [TENSOR_COLUMNS]
    for row in (tensors[place] for place in sorted(largest)):
        fractions = map(fraction, (row.share, row.density, row.recent_density))
        counts = formatting.grouped(row.weights), formatting.grouped(row.indices)
        table.append(
            (_shortened(printable(row.name)), *counts, *fractions, formatting.grouped(row.threshold or None))
        )
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = []
    for name, *figures in table:
        cells = (f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([f"{name:<{widths[0]}}", *cells]))
    left_out = max(compression.tensors_total, len(tensors)) - len(largest)
    return [*lines, f"and {formatting.counted(left_out, 'smaller tensor')}"] if left_out else lines


def fraction(value: float | None) -> str:
    """Format a fraction of one with three digits that matter: 12.3 %, 0.0456 %."""
    return formatting.UNKNOWN if value is None else f"{100 * value:.3g} %"


def _bits_per_index(part: UpdateSums) -> dict[str, float]:
    return {name: bits / part.indices if part.indices else 0.0 for name, bits in part.bits.by_name().items()}


def _shortened(name: str) -> str:
    """Shorten a long name to its end: beginnings are alike."""
    return name if len(name) <= NAME_WIDTH_MAX else "..." + name[3 - NAME_WIDTH_MAX :]
