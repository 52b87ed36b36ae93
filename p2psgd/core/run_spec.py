"""Defines what all nodes of a run must agree on, and the fingerprint that proves they do.

The trainer's first attach defines it; the fingerprint travels in HELLO, so another seed, shape or recipe is
refused before an update flows. It does not hold what may differ between nodes: batch size, device, rates of
a single step.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import msgpack
import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode


@dataclass(frozen=True)
class RunSpec:
    """Tensors in order (name, shape), quantum = 2**quantum_log2, mode, the recipe's label, the SHA-256 of the
    initial coordinates, what two nodes do that lose each other: both wait ("stall"), or the one with the
    lower node id goes on ("lower-id"), and how many shards of the data are counted.

    A replica consists of two vectors that share one index space: the weights, and then the shard counts.
    These are first the number of nodes that hold each shard, then the number of uses of each shard. An
    element of either vector is a coordinate, an int32.
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    quantum_log2: int
    mode: str
    label: str
    initial: bytes
    two_nodes: str
    shards: int = 0

    @cached_property
    def weights(self) -> int:
        """Return P: how many weights all tensors hold together."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def coordinates(self) -> int:
        """Return C: how many coordinates a replica has, weights and shard counts together."""
        return self.weights + codec.COUNTS_PER_SHARD * self.shards

    @property
    def quantum(self) -> float:
        """Return the weight that one unit of a coordinate is worth."""
        return 2.0**self.quantum_log2

    @cached_property
    def dense(self) -> bool:
        """Return whether its coordinates are bit patterns of float32 weights, which rounds of a ring change
        as a whole.
        """
        return parse_mode(self.mode).dense

    @cached_property
    def owners(self) -> bool:
        """Return whether ranges of the weights have owners."""
        return parse_mode(self.mode).owners

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the MessagePack array [3, mode, quantum_log2, [[name, [size...]]...], shards, initial,
        label, two_nodes] (SPEC.md, The run).
        """
        tensors = [[name, list(shape)] for name, shape in self.tensors]
        covered: bytes = msgpack.packb(
            [3, self.mode, self.quantum_log2, tensors, self.shards, self.initial, self.label, self.two_nodes]
        )
        return hashlib.sha256(covered).digest()

    @cached_property
    def key(self) -> int:
        """Return the key of the digest's hash: the fingerprint's first 8 bytes, little endian."""
        return int.from_bytes(self.fingerprint[:8], "little")

    def name_coordinate(self, index: int) -> str:
        """Return coordinate `index` in the words of the model, such as `hidden.0.weight[3, 17]`; a shard
        count in plain words.
        """
        start = 0
        for name, shape in self.tensors:
            size = math.prod(shape)
            if index < start + size:
                place = np.unravel_index(index - start, shape) if shape else ()
                return f"{name}[{', '.join(str(int(part)) for part in place)}]"
            start += size
        counts = ("nodes that hold", "uses of")
        if index < self.coordinates:
            kind, shard = divmod(index - start, self.shards)
            return f"the count of {counts[kind]} shard {shard}"
        raise IndexError(f"coordinate {index} of a run of {self.coordinates}")


def hash_coordinates(coordinates: NDArray[np.int32]) -> bytes:
    """Return the SHA-256 of the coordinates as little-endian int32."""
    return hashlib.sha256(np.ascontiguousarray(coordinates, dtype="<i4").data).digest()


def check_limits(spec: RunSpec) -> None:
    """Raise ValueError with a sentence if a limit of the wire format does not hold for this run, or its mode
    is not known.
    """
    parse_mode(spec.mode)
    if not 1 <= spec.weights <= spec.coordinates <= codec.WEIGHTS_MAX:
        raise ValueError(
            f"a run of {spec.weights} weights and {spec.coordinates - spec.weights} shard counts: "
            f"1 to {codec.WEIGHTS_MAX} are possible, one of them a weight"
        )
    if spec.shards and parse_mode(spec.mode).ring:
        raise ValueError(f"a run in mode {spec.mode} counts no shards: they are dealt out in async mode only")
    if not -30 <= spec.quantum_log2 <= 0:
        raise ValueError(f"quantum 2**{spec.quantum_log2} is out of range: it must be within 2**-30 and 1")


def name_run(fingerprint: bytes, label: str, mode: str = "") -> str:
    """Return a run's name for people: how its fingerprint begins, the recipe's label, and a mode if one is
    given.
    """
    return f"{fingerprint.hex()[:16]} ({label or 'no label'}{mode and f', {mode} mode'})"
