"""What a recording holds, as plain data and as text: `p2psgd recording`."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2psgd.core.compression import SlicedCompression, Tally
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import ExitCode, RecordingError, UsageError, words_of
from p2psgd.ops import numerals
from p2psgd.ops.compression import describe_compression, describe_tally
from p2psgd.ops.compression_text import ADVICE, facts_of, render_slices, tensor_rows
from p2psgd.ops.figures import printable
from p2psgd.wire.recording import RecordingHeader, read_start, read_updates

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _CountedFile(io.BufferedReader):
    """Knows how many bytes were read from it, which a pipe cannot tell."""

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
    total, slices = compression.total(), compression.slices
    latest = Tally.empty(len(header.tensors))
    for part in slices[-2:]:  # the last slice alone may be a few updates
        latest.add(part)
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
        **describe_compression(total, latest, header.tensors),
        "slices": [describe_tally(part, header.weights) for part in slices],
        "fault": fault,
    }


def render_recording(description: Mapping[str, Any]) -> str:
    """The description as lines of text, without a newline at the end."""
    run, total = description["run"], description["total"]
    label = f"{printable(run['label'])}: " if run["label"] else ""
    updates = numerals.counted(total["updates"], "update")
    origins = numerals.counted(description["origins"], "node")
    lines = [
        f"{printable(description['file'])}: {numerals.size(description['bytes'])}, {updates} of {origins}",
        f"run {label}{numerals.counted(run['weights'], 'weight')} in "
        f"{numerals.counted(description['tensors_total'], 'tensor')}, quantum 2^{run['quantum_log2']}, "
        f"fingerprint {run['fingerprint']}",
    ]
    if total["updates"]:
        lines += [*facts_of("all updates", total), ""]
        lines += ["from the first update to the last, bits per index:", *render_slices(description["slices"])]
        lines += ["", *tensor_rows(description), "", ADVICE]
    return "\n".join(lines)


def _check_fingerprint(header: RecordingHeader) -> None:
    fields = (header.tensors, header.quantum_log2, header.mode, header.label)
    spec = RunSpec(*fields, header.initial, header.two_nodes)
    if spec.fingerprint != header.fingerprint:
        raise RecordingError("the recording's header does not fit the fingerprint in it")
