"""Compression of updates: counted, as plain data and as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base import formatting
from p2psgd.base.formatting import printable
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.observe.status import (
    BITS,
    BitCounts,
    Compression,
    TensorSums,
    UpdateSums,
)
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# Where the bits of updates go and which tensors they change: what one looks at to choose tau.
#
# Sums only; ratios are made of them where they are shown (p2psgd.observe.compression). Density is per
# mini-batch, not per update: a mini-batch whose tensors have several steps makes several updates, and one in
# which no weight exceeds its step makes none.
#
# Costs one pass over the payload (`codec.measure`) and a binary search for each tensor, see `Meter`.


FRAME_BITS: Final = 8 * (PREFIX.size + UPDATE_HEADER_BYTES)  # of each update, before its payload
RECENT_MINI_BATCHES: Final = 100  # the recent sums cover the last 100 to 200 that made updates

Tensors = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over some updates of a run of T tensors; bits add up to those of the updates' frames."""

    tensor_indices: NDArray[np.int64]  # (T,)
    tensor_steps: NDArray[np.int64]  # (T,) quanta, of the last update that touched the tensor; 0: none did
    mini_batches: int = 0
    updates: int = 0
    dense_updates: int = 0  # those with a dense payload
    indices: int = 0
    header_bits: int = 0  # frames, update headers, block headers
    remainder_bits: int = 0
    quotient_bits: int = 0
    sign_bits: int = 0
    dense_bits: int = 0
    blocks: int = 0
    sign_coded_blocks: int = 0

    @classmethod
    def empty(cls, tensors: int) -> Tally:
        """The sums over no updates."""
        return cls(np.zeros(tensors, np.int64), np.zeros(tensors, np.int64))

    @property
    def bits(self) -> int:
        """All bits of the updates, frames included."""
        return self.header_bits + self.remainder_bits + self.quotient_bits + self.sign_bits + self.dense_bits

    def add(self, later: Tally) -> None:
        """Add the sums over updates that came after these."""
        self.tensor_indices += later.tensor_indices
        np.copyto(self.tensor_steps, later.tensor_steps, where=later.tensor_steps > 0)
        self.mini_batches += later.mini_batches
        self.updates += later.updates
        self.dense_updates += later.dense_updates
        self.indices += later.indices
        self.header_bits += later.header_bits
        self.remainder_bits += later.remainder_bits
        self.quotient_bits += later.quotient_bits
        self.sign_bits += later.sign_bits
        self.dense_bits += later.dense_bits
        self.blocks += later.blocks
        self.sign_coded_blocks += later.sign_coded_blocks


class Meter:
    """Takes updates of one run apart and adds them to tallies."""

    def __init__(self, tensors: Tensors, shards: int = 0) -> None:
        sizes = [math.prod(shape) for _, shape in tensors]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.tensors = len(sizes)
        self._coordinates = int(ends[-1]) + codec.COUNTS_PER_SHARD * shards
        followed = ends if shards else ends[:-1]
        self._firsts = (followed << 1).astype(np.uint32)  # the least word behind each tensor, if there is one
        self._places = np.zeros(self.tensors + 1, np.int64)
        self._mini_batches: dict[Origin, int] = {}

    def begin(self, origin: Origin, mini_batches: int) -> None:
        """Its mini-batches count from there on, not from 0."""
        self._mini_batches[origin] = mini_batches

    def count(
        self,
        tally: Tally,
        *,
        origin: Origin,
        mini_batch: int,
        step: int,
        words: NDArray[np.uint32],
        payload: bytes | memoryview,
    ) -> None:
        """Add one update, whose `payload` decodes to `words`, to a tally."""
        measured = codec.measure(payload, len(words), self._coordinates)
        tally.updates += 1
        tally.dense_updates += measured.blocks == 0
        tally.indices += len(words)
        tally.header_bits += FRAME_BITS + measured.header
        tally.remainder_bits += measured.remainder
        tally.quotient_bits += measured.quotient
        tally.sign_bits += measured.sign
        tally.dense_bits += measured.dense
        tally.blocks += measured.blocks
        tally.sign_coded_blocks += measured.sign_coded_blocks
        before = self._mini_batches.get(origin, 0)
        if mini_batch > before:
            tally.mini_batches += mini_batch - before
            self._mini_batches[origin] = mini_batch
        self._places[-1] = len(words)
        self._places[1 : 1 + len(self._firsts)] = words.searchsorted(self._firsts)
        counts = self._places[1:] - self._places[:-1]
        tally.tensor_indices += counts
        tally.tensor_steps[counts > 0] = step


class OwnCompression:
    """A node's own updates: all of them, and the recent ones."""

    def __init__(self, tensors: Tensors, me: Origin, *, mini_batches: int = 0, shards: int = 0) -> None:
        """`mini_batches`: so many were made by former lives; the run counts so many `shards`."""
        self._meter = Meter(tensors, shards)
        self._meter.begin(me, mini_batches)
        self._me = me
        self._mini_batch = 0  # of the last update
        self._mini_batches_made = 0  # of the current sums, without those that made no update
        self._older, self._previous, self._current = (Tally.empty(self._meter.tensors) for _ in range(3))

    def count(self, *, mini_batch: int, step: int, words: NDArray[np.uint32], payload: bytes) -> None:
        """Take in one more update."""
        if mini_batch != self._mini_batch:
            if self._mini_batches_made == RECENT_MINI_BATCHES:
                self._older.add(self._previous)
                self._previous, self._current = self._current, Tally.empty(self._meter.tensors)
                self._mini_batches_made = 0
            self._mini_batch = mini_batch
            self._mini_batches_made += 1
        self._meter.count(
            self._current, origin=self._me, mini_batch=mini_batch, step=step, words=words, payload=payload
        )

    def total(self) -> Tally:
        """The sums over all updates."""
        return _sum((self._older, self._previous, self._current), self._meter.tensors)

    def recent(self) -> Tally:
        """The sums over the last 100 to 200 mini-batches that made updates."""
        return _sum((self._previous, self._current), self._meter.tensors)


def _sum(tallies: Sequence[Tally], tensors: int) -> Tally:
    total = Tally.empty(tensors)
    for tally in tallies:
        total.add(tally)
    return total


# ----------------------------------------------------------------------------
# Compression as a part of the status (status.py): counts that add up, and the ratios made of them.
#
# Of a node's own updates (its status) or of all nodes' (the report of a local run).


# Tensors described one by one, the largest: 200 bytes each and the names, which all came in one request of
# 64 KiB, fit into an answer.
TENSORS_MAX: Final = 256
COUNTS: Final = ("updates", "mini_batches", "indices", "dense_updates", "blocks", "sign_coded_blocks")


def describe_tally(tally: Tally, weights: int) -> UpdateSums:
    """Return the sums over some updates of a run of `weights` weights."""
    counts = {name: int(getattr(tally, name)) for name in COUNTS}
    return _with_ratios(counts, {name: int(getattr(tally, f"{name}_bits")) for name in BITS}, weights)


def describe_compression(total: Tally, recent: Tally, tensors: Tensors) -> Compression:
    """Return all updates and the recent ones, as a whole and for each of the largest tensors."""
    sizes = [math.prod(shape) for _, shape in tensors]
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:TENSORS_MAX]
    return Compression(
        total=describe_tally(total, sum(sizes)),
        recent=describe_tally(recent, sum(sizes)),
        tensors_total=len(sizes),
        tensors=[
            TensorSums(
                name=tensors[place][0],
                weights=sizes[place],
                indices=int(total.tensor_indices[place]),
                step=int(total.tensor_steps[place]),
                share=_ratio(int(total.tensor_indices[place]), total.indices),
                density=_ratio(int(total.tensor_indices[place]), sizes[place] * total.mini_batches),
                recent_density=_ratio(int(recent.tensor_indices[place]), sizes[place] * recent.mini_batches),
            )
            for place in sorted(largest)
        ],
    )


def describe_nodes(nodes: Iterable[Compression | None], weights: int) -> Compression | None:
    """Return the updates of several nodes of one run as one, without the recent ones; None if there are none.

    A node that could only tell its total (lost before it was asked for more) is missing in the tensors.
    """
    told = [node for node in nodes if node is not None]
    counts = {name: sum(getattr(node.total, name) for node in told) for name in COUNTS}
    bits = {name: sum(getattr(node.total.bits, name) for node in told) for name in BITS}
    if not counts["updates"]:
        return None
    full = [node for node in told if node.tensors]
    mini_batches, indices = (
        sum(getattr(node.total, name) for node in full) for name in ("mini_batches", "indices")
    )
    rows: dict[str, list[TensorSums]] = {}
    for row in (row for node in full for row in node.tensors):
        rows.setdefault(row.name, []).append(row)
    tensors = []
    for name, each in rows.items():
        size, found = each[0].weights, sum(row.indices for row in each)
        step = next((row.step for row in reversed(each) if row.step), 0)
        share, density = _ratio(found, indices), _ratio(found, size * mini_batches)
        tensors.append(
            TensorSums(name=name, weights=size, indices=found, step=step, share=share, density=density)
        )
    return Compression(
        total=_with_ratios(counts, bits, weights),
        tensors_total=max((node.tensors_total for node in full), default=0),
        tensors=tensors,
    )


def _with_ratios(counts: Mapping[str, int], bits: Mapping[str, int], weights: int) -> UpdateSums:
    return UpdateSums(
        **counts,
        density=_ratio(counts["indices"], weights * counts["mini_batches"]),
        bits=BitCounts(**bits),
        bits_per_index=_ratio(sum(bits.values()), counts["indices"]),
    )


def _ratio(part: int, of: int) -> float | None:
    return part / of if of else None


# ----------------------------------------------------------------------------
# How the updates of one node compress, kept while it runs.


class Accounts:
    """The compression statistics of one node's life; there are none before `begin` tells the run."""

    def __init__(self) -> None:
        self._spec: RunSpec | None = None
        self._compression: OwnCompression | None = None

    def begin(self, spec: RunSpec, me: Origin, *, mini_batches: int) -> None:
        """The run is known; the trainer goes on from so many mini-batches of former lives."""
        self._spec = spec
        self._compression = OwnCompression(spec.tensors, me, mini_batches=mini_batches, shards=spec.shards)

    def count(self, update: OwnUpdateMade) -> None:
        """The trainer made an update."""
        assert self._compression is not None
        self._compression.count(
            mini_batch=update.mini_batch, step=update.step, words=update.words, payload=update.payload
        )

    def compression(self) -> Compression | None:
        """How the own updates compress, tensor by tensor; None before the run is known."""
        if self._spec is None or self._compression is None:
            return None
        own = self._compression
        return describe_compression(own.total(), own.recent(), self._spec.tensors)

    def totals(self) -> Compression | None:
        """The same in short, for the node's status: totals of the own updates."""
        if self._spec is None or self._compression is None:
            return None
        total, recent, weights = self._compression.total(), self._compression.recent(), self._spec.weights
        return Compression(total=describe_tally(total, weights), recent=describe_tally(recent, weights))


# ----------------------------------------------------------------------------
# Compression as text for people: a line on the whole, a row for each tensor, and what to look at.
#
# Pure functions of the descriptions above.


ROWS_MAX: Final = 50
NAME_WIDTH_MAX: Final = 40
LABEL_WIDTH: Final = 14
ADVICE: Final = (
    "To choose tau: density falls and bits per index rise as tau grows. Raise it while the loss after as\n"
    "many mini-batches stays as good; lower it where training slows down, for a single tensor if only its\n"
    "density is near 0."
)
TENSOR_COLUMNS: Final = ("weights", "indices", "share", "density", "recent", "step")


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
    mini_batches = formatting.counted(part.mini_batches, "mini-batch", "mini-batches")
    return [
        f"{label:<{LABEL_WIDTH}}{formatting.grouped(part.updates)} in {mini_batches}, "
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
    shown = [tensors[place] for place in sorted(largest)]
    rows = [
        [
            formatting.grouped(row.weights),
            formatting.grouped(row.indices),
            fraction(row.share),
            fraction(row.density),
            fraction(row.recent_density),
            formatting.grouped(row.step or None),
        ]
        for row in shown
    ]
    names = [_shortened(printable(row.name)) for row in shown]
    left_out = max(compression.tensors_total, len(tensors)) - len(shown)
    more = [f"and {formatting.counted(left_out, 'smaller tensor')}"] if left_out else []
    return _table(TENSOR_COLUMNS, rows, "tensor", names) + more


def fraction(value: float | None) -> str:
    """A fraction of one with three digits that matter: 12.3 %, 0.0456 %."""
    return formatting.UNKNOWN if value is None else f"{100 * value:.3g} %"


def _bits_per_index(part: UpdateSums) -> dict[str, float]:
    return {name: bits / part.indices if part.indices else 0.0 for name, bits in part.bits.by_name().items()}


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
