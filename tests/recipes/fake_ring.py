"""Links of several trainers in one process that train in rounds, without daemons: for tests of what stands on
such a link.

A round is complete when every link that has not been closed has given its share; then all take it over in the
order of the nodes. Sparse shares are those of FakeLink; dense ones are summed and divided in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from p2psgd.recipes.model import Vector
from tests.recipes.fake_link import FakeLink, FakeNet


class FakeRing(FakeNet):
    """What connects the links; `rounds` are complete."""

    links: list[FakeRingLink]  # type: ignore[assignment]

    def __init__(self, initial: dict[str, Vector], quantum: float, nodes: int, *, dense: bool) -> None:
        super().__init__(initial, quantum, 0)
        self.shapes = {name: tensor.shape for name, tensor in initial.items()}
        if dense:
            self.initial = np.concatenate([tensor.ravel() for tensor in initial.values()])
        self.dense = dense
        self.rounds = 0
        self.given: dict[int, Vector | None] = {}  # shares of the round under way
        self.begun: list[str] = []  # tensors, by all links
        self.links = [FakeRingLink(self, node) for node in range(nodes)]
        self.changed = threading.Condition()

    def give(self, node: int, share: Vector | None) -> None:
        with self.changed:
            assert node not in self.given, "one share to a round"
            self.given[node] = share
            self.complete()

    def complete(self) -> None:
        active = {link.node for link in self.links if link.finished is None}
        if not active or not active <= self.given.keys():
            return
        shares = [share for _, share in sorted(self.given.items()) if share is not None]
        total = np.zeros_like(self.initial)
        for share in shares:
            total += share
        if self.dense:
            total *= np.float32(1 / max(1, len(shares)))
        for link in self.links:
            link.brought.append((len(shares), total))
        self.given = {}
        self.rounds += 1
        self.changed.notify_all()


class FakeRingLink(FakeLink):
    """One trainer's end."""

    net: FakeRing

    def __init__(self, net: FakeRing, node: int) -> None:
        super().__init__(net, node)
        self.brought: list[tuple[int, Vector]] = []  # rounds that were not received yet
        self.proposal = np.zeros_like(net.initial)
        ends = np.cumsum(list(net.sizes.values()))[:-1]
        parts = zip(net.shapes.items(), np.split(self.proposal, ends), strict=True)
        self.proposed = {name: part.reshape(shape) for (name, shape), part in parts}
        self.begun: set[str] = set()
        self.skipped: list[int] = []

    @property
    def round(self) -> int:
        """As of the last receive."""
        return self.net.rounds + 1 - len(self.brought)

    def receive(self) -> int:
        assert self.node not in self.net.given, "would wait for the round"
        shares = 0
        for contributors, total in self.brought:
            self.weights = self.weights + total
            shares = contributors
        self.brought.clear()
        return shares

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        with self.net.changed:
            return self.net.changed.wait_for(
                lambda: self.stopping or self.node not in self.net.given, timeout_s
            )

    def send(
        self, delta: Vector, threshold: int | Mapping[str, int], *, steps: int = 1, rate: float | None = None
    ) -> int:
        before = self.weights.copy()
        count = super().send(delta, threshold, steps=steps, rate=rate)
        change, self.weights = self.weights - before, before
        self.net.give(self.node, change)
        return count

    def skip(self) -> int:
        self.skipped.append(self.round)
        self.net.give(self.node, None)
        return 0

    def allreduce_begin(self, name: str) -> None:
        assert name not in self.begun
        assert np.isfinite(self.proposed[name]).all()
        self.begun.add(name)
        self.net.begun.append(name)
        if len(self.begun) == len(self.proposed):
            self.begun = set()
            self.steps += 1
            share = self.proposal.copy()
            self.proposal[:] = 0
            self.net.give(self.node, share)

    def allreduce_wait(self) -> int:
        return self.receive()

    def close(self, finished: bool = False) -> None:
        with self.net.changed:
            super().close(finished)
            self.net.complete()
