"""A file of UPDATE frames that ends, whatever happens to the disk, after a whole one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final

from p2psgd.core.run_spec import RunSpec
from p2psgd.wire.recording import RecordingHeader, pack_start

BUFFERS_MAX: Final = 1024  # Linux's UIO_MAXIOV: what one writev takes


def start_of(spec: RunSpec) -> bytes:
    """The start of a recording of this run."""
    return pack_start(
        RecordingHeader(
            tensors=spec.tensors,
            quantum_log2=spec.quantum_log2,
            mode=spec.mode,
            label=spec.label,
            two_nodes=spec.two_nodes,
            initial=spec.initial,
            fingerprint=spec.fingerprint,
            weights=spec.weights,
        )
    )


class FrameFile:
    """Appends to a file of which this process alone has the `descriptor`, and closes it; `bytes` are in it,
    `bytes_held` from the start, and `whole` pieces since then.
    """

    def __init__(self, descriptor: int, *, bytes_held: int = 0) -> None:
        self.whole = 0
        self.bytes = bytes_held
        self._descriptor = descriptor

    def append(self, batch: Sequence[bytes]) -> None:
        """Write all of it; OSError if the device takes no more, the file then cut to what is whole."""
        place, offset = 0, 0  # of the next byte to write
        try:
            while place < len(batch):
                rest = memoryview(batch[place])[offset:]
                offset += os.writev(self._descriptor, [rest, *batch[place + 1 : place + BUFFERS_MAX]])
                while place < len(batch) and offset >= len(batch[place]):
                    offset -= len(batch[place])
                    self.bytes += len(batch[place])
                    self.whole += 1
                    place += 1
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes)
            raise

    def sync(self) -> None:
        """Wait until all of it is on disk; OSError if that fails."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)
