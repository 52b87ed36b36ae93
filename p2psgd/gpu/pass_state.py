"""Hold a residual pass's request, the device memory that it works in, and its result.

All ranges of a send go into one launch: a table says which weights each range holds and where its words go.
The kernel cuts the ranges into tiles. A tile learns from those before it how many words come before its own,
by one 64-bit state of each, which also bears the number of the pass: nothing is cleared between passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.gpu.memory import pinned_empty
from p2psgd.wire import codec

TILE_WEIGHTS: Final = 4096  # as in kernels/residual.cu; tiles begin at multiples of it
EPOCH_MAX: Final = 2**31 - 1  # a tile's state has 31 bits for the number of the pass

_RECORD: Final = np.dtype(  # struct Range of kernels/residual.cu
    [
        ("first_tile", np.uint32),
        ("begin", np.uint32),
        ("end", np.uint32),
        ("threshold", np.float32),
        ("words_begin", np.uint32),
        ("room", np.uint32),
        ("group_first_tile", np.uint32),
        ("group", np.uint32),
    ]
)


@dataclass(frozen=True, slots=True)
class PassGroup:
    """Weights that share a threshold (positive, exact in float32) and room for at most `room` words.

    Words come range after range in the order of `ranges` (begin, end), each of which holds a weight or more.
    """

    threshold: float
    ranges: tuple[tuple[int, int], ...]
    room: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """For each group, the number of words of each range, and the first weight in the order of the ranges that
    is beyond the threshold and found no room, if there is one.
    """

    counts: tuple[tuple[int, ...], ...]
    missed: tuple[int | None, ...]


class PassState:
    """Device memory of passes over up to `weights` weights in up to `ranges_max` ranges, one pass at a time.

    8 bytes for each tile and 40 for each range.
    """

    def __init__(self, weights: int, ranges_max: int) -> None:
        self._weights = weights
        self._ranges_max = ranges_max
        tiles_max = -(-weights // TILE_WEIGHTS) + 2 * ranges_max
        self.tiles = cupy.zeros(tiles_max, np.uint64)
        self.ticket = cupy.zeros(1, np.uint32)
        self.table = cupy.zeros(ranges_max * _RECORD.itemsize, np.uint8)
        self.results = cupy.zeros(1 + ranges_max, np.uint64)  # the first that is not finite; then _cut's
        self.totals, self.missed = self.results[1:].view(np.uint32).reshape(2, ranges_max)
        self._host_table = pinned_empty(ranges_max, _RECORD)
        self._host_results = pinned_empty(1 + ranges_max, np.uint64)
        self._groups: tuple[PassGroup, ...] = ()  # those of the table
        self._first = 0
        self._pending = False
        self._clean = True  # not from the begin of a pass until its results are read
        self.ranges = 0  # of the table
        self.tiles_used = 0
        self._weights_end = 0
        self._words_end = 0
        self.epoch = 0
        self.first_ticket = 0

    def begin(self, groups: Sequence[PassGroup], first: int, stream: Any, *, weights: int, room: int) -> None:
        """Order the table of a pass onto the device, unless it is there; the launch follows on `stream`.

        The pass is over `weights` weights and has room for `room` words in all. ValueError for what does not
        fit: nothing has been ordered then.
        """
        if self._pending:
            raise ValueError("the results of the pass before this one have not been read")
        changed = self._groups != tuple(groups)
        if changed:
            self._groups = ()
            self._fill_table(groups)
        if self._weights_end > weights:
            raise ValueError(f"the ranges end at weight {self._weights_end} and there are {weights}")
        if self._words_end > room:
            raise ValueError(f"the groups have room for {self._words_end} words and words for {room}")
        self._clean = False
        if changed:
            _copy(self.table, self._host_table, self.ranges * _RECORD.itemsize, stream, to_device=True)
            self._groups = tuple(groups)
        if self.epoch == EPOCH_MAX:
            with stream:
                self.tiles.fill(0)
                self.results.fill(0)
            self.epoch = 0
        self.epoch += 1
        self._first = first

    def launched(self) -> None:
        """Note that the pass is on its way: its tiles have taken their tickets before the next pass's."""
        self.first_ticket = (self.first_ticket + self.tiles_used) % 2**32
        self._pending = True

    def read(self, stream: Any = None) -> PassResult:
        """Wait for the pass on `stream`, by default the current one; the only wait for the device.

        ValueError, as from codec.residual_pass, for a sum that is NaN or infinite.
        """
        if not self._pending:
            raise ValueError("there is no pass whose results could be read")
        stream = cupy.cuda.get_current_stream() if stream is None else stream
        _copy(self.results, self._host_results, self.results.nbytes, stream, to_device=False)
        stream.synchronize()
        self._pending, self._clean = False, True
        bad = int(self._host_results[0])
        if bad >> 32 == self.epoch:
            place = self._first + self._weight_at(0xFFFFFFFF - (bad & 0xFFFFFFFF))
            raise ValueError(f"at weight {place} the residual and delta add up to NaN or infinity")
        return self._cut(self._host_results[1:].view(np.uint32))

    def make_clean(self) -> None:
        """Wait, after a pass that was interrupted, until the device has done with it, and forget it."""
        if self._clean:
            return
        cupy.cuda.Device().synchronize()
        for array in (self.tiles, self.ticket, self.results):
            array.fill(0)
        self._groups = ()
        self.epoch = self.first_ticket = 0
        self._pending, self._clean = False, True

    def _cut(self, found: NDArray[np.uint32]) -> PassResult:
        """Cut `found` into the results of the groups; it holds totals of the group up to the end of each
        range, then the weight missed by each group.
        """
        counts, missed = [], []
        position = 0
        for number, group in enumerate(self._groups):
            totals = found[position : position + len(group.ranges)].tolist()
            ends = [0, *(min(total, group.room) for total in totals)]
            counts.append(tuple(end - begin for begin, end in pairwise(ends)))
            missed.append(int(found[self._ranges_max + number]) if totals[-1] > group.room else None)
            position += len(group.ranges)
        return PassResult(tuple(counts), tuple(missed))

    def _weight_at(self, place: int) -> int:
        """Return the weight at a place counted through all tiles of the table."""
        table = self._host_table[: self.ranges]
        record = table[int(np.searchsorted(table["first_tile"], place // TILE_WEIGHTS, "right")) - 1]
        tile = place // TILE_WEIGHTS - int(record["first_tile"]) + int(record["begin"]) // TILE_WEIGHTS
        return tile * TILE_WEIGHTS + place % TILE_WEIGHTS

    def _fill_table(self, groups: Sequence[PassGroup]) -> None:
        """Write the table on the host; ValueError for what the kernel could not take."""
        ranges = sum(len(group.ranges) for group in groups)
        if not 1 <= ranges <= self._ranges_max:
            raise ValueError(f"a pass over {ranges} ranges, allowed are 1 to {self._ranges_max}")
        tile = words_begin = row = 0
        for number, group in enumerate(groups):
            threshold = _checked_threshold(group.threshold)
            if group.room < 0:
                raise ValueError(f"a room of {group.room} words is negative")
            if not group.ranges:
                raise ValueError(f"group {number} has no range")
            group_first_tile = tile
            for begin, end in group.ranges:
                if not 0 <= begin < end <= self._weights:
                    raise ValueError(f"weights {begin} to {end} are no range of {self._weights} weights")
                self._host_table[row] = (
                    tile,
                    begin,
                    end,
                    threshold,
                    words_begin,
                    group.room,
                    group_first_tile,
                    number,
                )
                tile += (end - 1) // TILE_WEIGHTS - begin // TILE_WEIGHTS + 1
                row += 1
            words_begin += group.room
        if tile > len(self.tiles):
            raise ValueError(f"the ranges hold more than the {self._weights} weights, some of them twice")
        self.ranges, self.tiles_used, self._words_end = ranges, tile, words_begin
        self._weights_end = max(end for group in groups for _, end in group.ranges)


def _checked_threshold(threshold: float) -> np.float32:
    if not (threshold > 0 and math.isfinite(threshold)):
        raise ValueError(f"the threshold {threshold} must be positive and finite")
    with np.errstate(over="ignore"):
        rounded = np.float32(threshold)
    if float(rounded) != threshold:
        raise ValueError(f"the threshold {threshold} is not exact in float32")
    return rounded


def _copy(device: Any, host: NDArray[Any], size: int, stream: Any, *, to_device: bool) -> None:
    runtime = cupy.cuda.runtime
    there, here = device.data.ptr, host.ctypes.data
    target, source = (there, here) if to_device else (here, there)
    kind = runtime.memcpyHostToDevice if to_device else runtime.memcpyDeviceToHost
    runtime.memcpyAsync(target, source, size, kind, stream.ptr)


assert codec.WEIGHTS_MAX <= 2**31  # a weight, and a count of words, has room in 32 bits
