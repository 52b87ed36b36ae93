"""Links of several trainers in one process, without daemons: for tests of what stands on a link, not of
links.

Words go straight into the others' inboxes, the threshold is plain numpy. As on real links an update counts
through the sender's mini-batches and weights are whole multiples of the quantum, so that all links must end
with equal bits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast

import numpy as np

from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.recipes.model import Vector

Update = tuple[int, int, np.ndarray[Any, np.dtype[np.int64]], Vector]  # (node, steps, indices, amounts)


class FakeNet:
    """What connects the links."""

    def __init__(self, initial: dict[str, Vector], quantum: float, nodes: int) -> None:
        self.quantum = quantum
        flat = np.concatenate([tensor.ravel() for tensor in initial.values()])
        self.sizes = {name: tensor.size for name, tensor in initial.items()}
        self.initial: Vector = (np.rint(flat / quantum) * quantum).astype(np.float32)
        self.arrived = threading.Condition()
        self.links = [FakeLink(self, node) for node in range(nodes)]


class FakeLink:
    """One trainer's end."""

    def __init__(self, net: FakeNet, node: int) -> None:
        self.net = net
        self.node = node
        self.rank_told: tuple[int, int] | None = None
        self.weights: Vector = net.initial.copy()
        self.residual: Vector = np.zeros_like(net.initial)
        self.steps = 0
        self.peer_steps: dict[int, int] = {}
        self.stopping = False
        self.inbox: deque[Update] = deque()
        self.reports: list[dict[str, object]] = []
        self.thresholds: list[int | Mapping[str, int]] = []
        self.counts: list[int] = []
        self.sent: dict[str, int] = dict.fromkeys(net.sizes, 0)
        self.waits = 0
        self.waited_s = self.adding_s = self.sending_s = 0.0
        self.finished: bool | None = None
        self.restored: Mapping[str, Any] | None = None
        self.make_state: Callable[[], Mapping[str, Any]] | None = None

    @property
    def rank(self) -> int:
        if self.rank_told is None:
            raise TrainerError("this node does not know its rank: --rank i/n")
        return self.rank_told[0]

    @property
    def world_size(self) -> int:
        assert self.rank_told is not None
        return self.rank_told[1]

    def keep(self, make_state: Callable[[], Mapping[str, Any]]) -> None:
        self.make_state = make_state

    def receive(self) -> int:
        with self.net.arrived:
            updates = list(self.inbox)
            self.inbox.clear()
        for node, steps, indices, amounts in updates:
            self.weights[indices] += amounts
            self.peer_steps[node] = steps
        return len(updates)

    def send(
        self, delta: Vector, threshold: int | Mapping[str, int], *, steps: int = 1, rate: float | None = None
    ) -> int:
        assert rate is None
        assert np.isfinite(delta).all()
        sizes = self.net.sizes
        by_tensor = dict.fromkeys(sizes, threshold) if isinstance(threshold, int) else threshold
        assert by_tensor.keys() == sizes.keys()
        self.residual += delta
        limits = np.repeat(
            np.array([by_tensor[name] * self.net.quantum for name in sizes], np.float32), list(sizes.values())
        )
        over = np.abs(self.residual) > limits
        indices = np.flatnonzero(over)
        amounts = np.copysign(limits, self.residual)[indices]
        self.residual[indices] -= amounts
        self.weights[indices] += amounts
        self.steps += steps
        self.thresholds.append(threshold)
        self.counts.append(len(indices))
        parts = np.split(over, np.cumsum(list(sizes.values()))[:-1])
        self.sent = {name: int(np.count_nonzero(part)) for name, part in zip(sizes, parts, strict=True)}
        with self.net.arrived:
            for link in self.net.links:
                if link is not self:
                    link.inbox.append((self.node, self.steps, indices, amounts))
            self.net.arrived.notify_all()
        return len(indices)

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        with self.net.arrived:
            return self.net.arrived.wait_for(lambda: bool(self.inbox), timeout_s)

    def report(self, **fields: object) -> None:
        self.reports.append(fields)

    def close(self, finished: bool = False) -> None:
        if self.finished is None:
            self.finished = finished

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=error is None)


def as_link(stand_in: object) -> Link:
    """Pass what stands in for a link to code that is typed for a real one."""
    return cast(Link, stand_in)
