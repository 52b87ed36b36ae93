"""Holds weights and residual on a CUDA device, for a link of p2psgd.gpu.attach (client/compute.py).

Everything is ordered on the stream that is current at each call: make deltas and read weights on that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.base.formatting import say
from p2psgd.client.compute import Group, Named, NotePeer, PassResult, Segment, Words, cut
from p2psgd.gpu.kernels import Kernels
from p2psgd.gpu.memory import Registered
from p2psgd.gpu.residual import DeviceResidual
from p2psgd.gpu.working_copy import DeviceWorkingCopy
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode


class DeviceCompute:
    """A link's, on the device that is current; `copy_s`: seconds between copies of the residual."""

    def __init__(
        self, answer: AttachAnswer, memory: TrainerMemory[Any], kernels: Kernels, *, copy_s: float
    ) -> None:
        self._memory = memory
        self._device = int(cupy.cuda.Device().id)
        self._answer = answer
        self._copy = DeviceWorkingCopy(answer, kernels)
        self.weights, self.tensors = self._copy.weights, self._copy.tensors  # of the model
        self._residual: DeviceResidual | None = None  # none in a dense ring
        if not parse_mode(answer.mode).dense:
            self._residual = DeviceResidual(answer, memory, kernels, copy_s=copy_s)
        self._found: list[tuple[PassResult, Any]] = []  # of the last pass
        self._registered: list[Registered] = []
        self._contributions: Mapping[str, NDArray[np.float32]] = {}
        self._proposed: dict[str, Any] = {}

    @property
    def residual(self) -> Any:
        """Return the residual (P,), as of the last publication."""
        if self._residual is None:
            return cupy.zeros_like(self.weights)
        return self._residual.current

    def fetch_shard_counts(self) -> NDArray[np.float32]:
        """Return a copy of the counts, once all that was ordered is done."""
        return self._copy.fetch_shard_counts()

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica."""
        self._copy.copy_from(replica)

    def digest(self, key: int) -> int:
        """Return the digest of the weights; computed on the device, which is waited for."""
        return self._copy.digest(key)

    def check(self, delta: Any) -> Any:
        """Return the delta, contiguous."""
        ours = isinstance(delta, cupy.ndarray)
        if not ours or delta.dtype.name not in codec.DELTA_TYPES or delta.shape != self.weights.shape:
            found = f"{delta.dtype} {delta.shape}" if ours else type(delta).__name__
            raise TrainerError(
                f"delta must be a CuPy array {self.weights.shape} of {', '.join(codec.DELTA_TYPES)};"
                f" it is {found}"
            )
        if int(delta.device.id) != self._device:
            raise TrainerError(
                f"delta must be on cuda:{self._device}, as the link is; it is on cuda:{delta.device.id}"
            )
        return cupy.ascontiguousarray(delta)

    def pass_over(
        self, delta: Any, chains: Sequence[Segment], meanwhile: Callable[[], None]
    ) -> list[PassResult]:
        """Compute the residual of the next publication, and return what to send."""
        assert self._residual is not None, "there is none in a dense ring"
        self._found = self._residual.pass_over(delta, chains, meanwhile)
        return [found for found, _ in self._found]

    def apply_sent(self, sent: Sequence[tuple[Group, Words]]) -> None:
        """Apply what came of it, from the words on the device."""
        there = [words for _, words in self._found if len(words)]
        self._copy.apply_sent([(group, words) for (group, _), words in zip(sent, there, strict=True)])

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies."""
        return self._copy.apply_received(bodies, note_peer)

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round."""
        self._copy.add(sums, factor)

    def place_contributions(self, contributions: Mapping[str, NDArray[np.float32]]) -> Named:
        """Return arrays on the device for a contribution, which is written there and fetched tensor by
        tensor.
        """
        self._contributions = contributions
        self._registered = [
            Registered(self._memory.contributions),
            Registered(self._memory.sums, read_only=True),
        ]
        self._proposed = cut(cupy.zeros_like(self.weights), self._answer.tensors)
        return self._proposed

    def fetch_contribution(self, name: str) -> None:
        """Copy a tensor of the contribution to where the daemon reads it."""
        self._proposed[name].get(out=self._contributions[name])

    def fetch_delta(self, delta: Any) -> NDArray[Any]:
        """Return a copy on the host."""
        numbers: NDArray[Any] = delta.get()
        return numbers

    def rest(self) -> None:
        """Copy the residual, if that is due."""
        if self._residual is not None:
            self._residual.copy_if_due()

    def keep_residual(self) -> None:
        """Copy it, for the next trainer as well."""
        if self._residual is not None:
            self._memory.keep_residual(self._residual.copy())

    def close(self) -> None:
        """Copy the residual for the next trainer; a device that fails is reported, and leaves the copy
        before.
        """
        try:
            cupy.cuda.Device().synchronize()
            if self._residual is not None:
                self._residual.copy()
            for registered in self._registered:
                registered.close()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            say(f"the GPU failed while its trainer left: {error}")
