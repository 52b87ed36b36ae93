"""Show how the updates in a recording compress, as a whole, over time and by tensor.

    python -m benchmarks.recording FILE [--json]

FILE is what `p2psgd node --record FILE` or `p2psgd local --record FILE` wrote. The exit code is 65 if it
cannot be read to its end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base import formatting
from p2psgd.base.errors import ExitCode, RecordingError, UsageError, words_of
from p2psgd.base.formatting import printable
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.observe.compression import (
    ADVICE,
    Meter,
    Tally,
    Tensors,
    describe_compression,
    describe_tally,
    facts_of,
    fraction,
    tensor_rows,
)
from p2psgd.observe.status import Compression
from p2psgd.wire.recording import RecordingHeader, read_start, read_updates

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SLICES_MAX: Final = 16
SLICE_FORMAT: Final = "{:>9}{:>14}{:>10}{:>12}  {}"


class SlicedCompression:
    """A whole run in at most 16 slices of equally many updates (the last has what is left), in one pass.

    When there are more, neighbours are joined: memory stays bounded however long the run is.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.slices: list[Tally] = []
        self._meter = Meter(tensors)
        self._updates_of_slice = 1

    def count(
        self, *, origin: Origin, mini_batch: int, step: int, words: NDArray[np.uint32], payload: memoryview
    ) -> None:
        """Count the next update of the run."""
        if not self.slices or self.slices[-1].updates == self._updates_of_slice:
            if len(self.slices) == SLICES_MAX:
                self._join_neighbours()
            self.slices.append(Tally.empty(self._meter.tensors))
        self._meter.count(
            self.slices[-1], origin=origin, mini_batch=mini_batch, step=step, words=words, payload=payload
        )

    def sum_last(self, slices: int) -> Tally:
        """Return the sums over the last so many slices."""
        total = Tally.empty(self._meter.tensors)
        for part in self.slices[-slices:]:
            total.add(part)
        return total

    def _join_neighbours(self) -> None:
        for earlier, later in zip(self.slices[::2], self.slices[1::2], strict=True):
            earlier.add(later)
        self.slices = self.slices[::2]
        self._updates_of_slice *= 2


class _CountedFile(io.BufferedReader):
    """Counts the bytes that were read, which a pipe cannot tell."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer)
        self.count += count
        return count


def describe_recording(path: Path) -> dict[str, Any]:
    """Read a whole recording. `fault` says where and why it cannot be read on, empty at its proper end.

    UsageError if there is no such file, RecordingError if it does not begin like a recording.
    """
    try:
        with _CountedFile(io.FileIO(path)) as file:
            header = read_start(file)
            _check_fingerprint(header)
            compression, origins, fault = SlicedCompression(header.tensors), set[Origin](), ""
            try:
                for update in read_updates(file, header.weights):
                    origin = Origin(update.header.node, update.header.incarnation)
                    origins.add(origin)
                    compression.count(
                        origin=origin,
                        mini_batch=update.header.mini_batch,
                        step=update.header.step,
                        words=update.words,
                        payload=update.payload,
                    )
            except RecordingError as error:
                fault = str(error)
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else file.count
    except OSError as error:
        words = words_of(error)
        raise UsageError(f"the recording {path} cannot be read: {words}", ExitCode.USAGE) from None
    total = compression.sum_last(SLICES_MAX)
    latest = compression.sum_last(2)  # the last slice alone may be a few updates
    return {
        "file": str(path),
        "bytes": size,
        "run": {
            "fingerprint": header.fingerprint.hex(),
            "label": header.label,
            "mode": header.mode,
            "weights": header.weights,
            "quantum_log2": header.quantum_log2,
        },
        "origins": len(origins),
        **describe_compression(total, latest, header.tensors).model_dump(),
        "slices": [describe_tally(part, header.weights).model_dump() for part in compression.slices],
        "fault": fault,
    }


def render_recording(description: Mapping[str, Any]) -> str:
    """Return the description as lines of text, without a newline at the end."""
    run, compression = description["run"], Compression.model_validate(description)
    total = compression.total
    label = f"{printable(run['label'])}: " if run["label"] else ""
    updates = formatting.counted(total.updates, "update")
    origins = formatting.counted(description["origins"], "node")
    lines = [
        f"{printable(description['file'])}: {formatting.size(description['bytes'])}, {updates} of {origins}",
        f"run {label}{formatting.counted(run['weights'], 'weight')} in "
        f"{formatting.counted(description['tensors_total'], 'tensor')}, quantum 2^{run['quantum_log2']}, "
        f"fingerprint {run['fingerprint']}",
    ]
    if total.updates:
        kinds = "".join(f"{name:>11}" for name in total.bits.by_name())
        lines += [*facts_of("all updates", total), "", "from the first update to the last, bits per index:"]
        lines += [SLICE_FORMAT.format("updates", "mini-batches", "density", "bits/index", kinds)]
        lines += map(_render_slice, description["slices"])
        lines += ["", *tensor_rows(compression), "", ADVICE]
    return "\n".join(lines)


def _render_slice(part: Mapping[str, Any]) -> str:
    indices = max(1, part["indices"])
    return SLICE_FORMAT.format(
        formatting.grouped(part["updates"]),
        formatting.grouped(part["mini_batches"]),
        fraction(part["density"]),
        formatting.decimals(part["bits_per_index"], 2),
        "".join(f"{bits / indices:>11.2f}" for bits in part["bits"].values()),
    )


def _check_fingerprint(header: RecordingHeader) -> None:
    fields = (header.tensors, header.quantum_log2, header.mode, header.label)
    spec = RunSpec(*fields, header.initial, header.two_nodes)
    if spec.fingerprint != header.fingerprint:
        raise RecordingError("the recording's header does not fit the fingerprint in it")


def main() -> ExitCode:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recording",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file that `--record` wrote")
    parser.add_argument("--json", action="store_true", help="print everything, for machines")
    arguments = parser.parse_args()
    try:
        description = describe_recording(arguments.file)
    except UsageError as error:  # RecordingError among them
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(description, indent=2) if arguments.json else render_recording(description))
    if description["fault"]:
        print(description["fault"], file=sys.stderr)
        return ExitCode.DATA
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
