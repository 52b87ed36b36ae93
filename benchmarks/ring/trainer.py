"""A training script in a dense ring:
`python -m benchmarks.ring.trainer CONTROL PLACE NODES COUNT TENSORS ORDER`.

Its weights are COUNT numbers in TENSORS tensors. The words of a line say what to do:

    allreduce          sum an array of its own
    round together S   compute for S seconds, then give all tensors
    round overlapped S compute the same, and give each tensor as soon as its part of the computing is done

Computing is a sleep: what it costs a net's own machine would here be taken from the other hosts, which share
this one.
"""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np

import p2psgd
from benchmarks.ring.worker import Numbers, serve, share_of
from p2psgd.client.link import Link


class RingTrainer:
    def __init__(self, link: Link, place: int, nodes: int) -> None:
        self._link, self._nodes = link, nodes
        self._share = share_of(place, link.weights.size)
        self._before = link.weights.copy()
        self._array = link.array(link.weights.size)

    def work(self, words: list[str]) -> Numbers:
        match words:
            case ["allreduce"]:
                return self._link.allreduce(self._array, "sum", copy=False)
            case ["round", "together" | "overlapped" as way, seconds]:
                return self._round(float(seconds), overlapped=way == "overlapped")
            case _:
                raise SystemExit(f"what is {words}?")

    def prepare(self) -> None:
        """The changes that the next round is given, and what is changed by it."""
        link, start = self._link, 0
        link.receive()
        self._array[:] = self._share
        for changes in link.proposed.values():
            changes.reshape(-1)[:] = self._share[start : start + changes.size]
            start += changes.size
        np.copyto(self._before, link.weights)

    def settle(self, result: Numbers) -> Numbers:
        """Sums, whole numbers again: what the weights were changed by is their mean, rounded."""
        if result is self._link.weights:
            sums: Numbers = np.rint((result - self._before) * np.float32(self._nodes)) + np.float32(
                0
            )  # no -0
            return sums
        return np.ascontiguousarray(result)

    def _round(self, seconds: float, *, overlapped: bool) -> Numbers:
        link = self._link
        for name in link.tensors:
            time.sleep(seconds / len(link.tensors))
            if overlapped:
                link.allreduce_begin(name)
        if not overlapped:
            for name in link.tensors:
                link.allreduce_begin(name)
        contributors = link.allreduce_wait()
        assert contributors == self._nodes, f"{contributors} nodes had a share in the round"
        return link.weights


def main() -> None:
    control = sys.argv[1]
    place, nodes, count, tensors = map(int, sys.argv[2:6])
    bounds = [count * each // tensors for each in range(tensors + 1)]
    initial = {
        f"tensor-{number}": np.zeros(end - start, np.float32)
        for number, (start, end) in enumerate(itertools.pairwise(bounds))
    }
    with p2psgd.attach(initial, mode="ring", payload="dense", control=control) as link:
        ring = RingTrainer(link, place, nodes)
        serve(ring.work, prepare=ring.prepare, settle=ring.settle)


if __name__ == "__main__":
    main()
