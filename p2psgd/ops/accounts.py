"""What a node keeps about updates beside replicating them: how its own compress, and the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2psgd.core.compression import OwnCompression
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.ipc.host import OwnUpdate
from p2psgd.ops.compression import describe_compression, describe_tally
from p2psgd.ops.recorder import Recorder


class Accounts:
    """Of one node's life; nothing before `begin` tells the run."""

    def __init__(self, record: Path | None, *, record_bytes_max: int) -> None:
        """`record`: the file of the recording, made when the run is known (see recorder.py)."""
        self._recorder = None if record is None else Recorder(record, bytes_max=record_bytes_max)
        self._spec: RunSpec | None = None
        self._compression: OwnCompression | None = None

    @property
    def recording(self) -> bool:
        """Whether `record` is to be called for every update applied."""
        return self._recorder is not None

    def begin(self, spec: RunSpec, me: Origin, *, mini_batches: int) -> None:
        """The run is known; the trainer goes on from so many mini-batches of former lives."""
        self._spec = spec
        self._compression = OwnCompression(spec.tensors, me, mini_batches=mini_batches)
        if self._recorder is not None:
            self._recorder.begin(spec)

    def count(self, update: OwnUpdate) -> None:
        """The trainer made an update."""
        assert self._compression is not None
        self._compression.count(
            mini_batch=update.mini_batch, step=update.step, words=update.words, payload=update.payload
        )

    def record(self, frame: bytes) -> None:
        """An update, own or a peer's, was applied."""
        assert self._recorder is not None
        self._recorder.add(frame)

    def compression(self) -> dict[str, Any]:
        """How the own updates compress, tensor by tensor; empty before the run is known."""
        if self._spec is None or self._compression is None:
            return {}
        own = self._compression
        return describe_compression(own.total(), own.recent(), self._spec.tensors)

    def status(self) -> dict[str, Any]:
        """The node's status in short: totals of the own updates, the recording; null where there is none."""
        short = None
        if self._spec is not None and self._compression is not None:
            total, recent = self._compression.total(), self._compression.recent()
            weights = self._spec.weights
            short = {"total": describe_tally(total, weights), "recent": describe_tally(recent, weights)}
        return {
            "compression": short,
            "recording": None if self._recorder is None else self._recorder.status(),
        }

    async def close(self) -> None:
        """Write the recording to its end."""
        if self._recorder is not None:
            await self._recorder.close()
