"""Are the replicas the same? By every byte, and by the digests that the nodes themselves vouch for.

The digests alone would do if there were no bugs: this is the check that would find one. Bytes are compared
with bytes, and each digest is computed again from the bytes, so that a digest that only its own bookkeeping
believes in is found too. Pure: copies of replicas in, verdict out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.ops import numerals
from p2psgd.wire import codec


@dataclass(frozen=True, slots=True, eq=False)
class NodeReplica:
    """A copy of one node's weights: int32 coordinates (P,), weight = coordinate x 2^quantum_log2."""

    node: str
    quantum_log2: int
    digest: int  # what the daemon says it is
    coordinates: NDArray[np.int32]

    @property
    def weights(self) -> NDArray[np.float32]:
        """The weights as float32 (P,): exact, a coordinate has 24 bits and the quantum is a power of two."""
        return self.coordinates.astype(np.float32) * np.float32(2.0**self.quantum_log2)


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The verdict over some replicas: those of equal bytes are together in one group."""

    groups: tuple[tuple[NodeReplica, ...], ...]
    wrong_digests: tuple[str, ...]  # sentences

    @property
    def identical(self) -> bool:
        """Whether all replicas are the same bytes, and every digest is theirs."""
        return len(self.groups) == 1 and not self.wrong_digests

    @property
    def digest(self) -> int | None:
        """The digest of all replicas; None when they differ."""
        return self.groups[0][0].digest if self.identical else None

    @property
    def findings(self) -> list[str]:
        """What is wrong, in sentences; nothing when the replicas are identical."""
        sentences = list(self.wrong_digests)
        for group in self.groups[1:]:
            sentences.append(_difference(self.groups[0], group))
        return sentences


def prove(replicas: Iterable[NodeReplica], key: int) -> Proof:
    """Compare the replicas; `key` is the run's key of the digest. Holds one copy per distinct replica."""
    groups: list[list[NodeReplica]] = []
    wrong: list[str] = []
    for replica in replicas:
        found = codec.digest_coordinates(replica.coordinates, key)
        if found != replica.digest:
            wrong.append(
                f"{replica.node} reports the digest {replica.digest:016x}, its weights have {found:016x}"
            )
        for group in groups:
            if _same(group[0], replica):
                group.append(dataclasses.replace(replica, coordinates=group[0].coordinates))
                break
        else:
            groups.append([replica])
    return Proof(tuple(tuple(group) for group in groups), tuple(wrong))


def _same(left: NodeReplica, right: NodeReplica) -> bool:
    return left.quantum_log2 == right.quantum_log2 and np.array_equal(left.coordinates, right.coordinates)


def _difference(left: tuple[NodeReplica, ...], right: tuple[NodeReplica, ...]) -> str:
    one, other = left[0], right[0]
    names = [numerals.listed([replica.node for replica in group]) for group in (left, right)]
    if one.quantum_log2 != other.quantum_log2 or one.coordinates.shape != other.coordinates.shape:
        return f"{names[1]}: the replica belongs to another run than that of {names[0]}"
    places = np.flatnonzero(one.coordinates != other.coordinates)
    first = int(places[0])
    count = numerals.counted(len(places), "weight")
    return (
        f"{names[1]}: the replica differs from that of {names[0]} in {count}, "
        f"first in weight {first}: {other.coordinates[first]} instead of {one.coordinates[first]} quanta"
    )
