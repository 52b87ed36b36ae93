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
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.weights import weights_of


@dataclass(frozen=True, slots=True, eq=False)
class NodeReplica:
    """A copy of one node's weights: int32 coordinates (P,), which mean what the run's mode says."""

    node: str
    mode: str
    quantum_log2: int
    digest: int  # what the daemon says it is
    coordinates: NDArray[np.int32]

    @property
    def weights(self) -> NDArray[np.float32]:
        """The weights as float32 (P,): exact, a coordinate has 24 bits and the quantum is a power of two."""
        return weights_of(self.coordinates, mode=self.mode, quantum_log2=self.quantum_log2)

    @property
    def run(self) -> tuple[str, int]:
        """What two replicas of one run have in common."""
        return self.mode, self.quantum_log2

    def name_value(self, index: int) -> str:
        """A weight for people, exactly: in `unit`, of a dense ring with its bits."""
        if self.unit:
            return str(self.coordinates[index])
        return f"{self.weights[index]:.9g} ({int(self.coordinates[index]) % 2**32:08x})"

    @property
    def unit(self) -> str:
        """What stands behind `name_value`."""
        return "" if parse_mode(self.mode).dense else " quanta"


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
    return left.run == right.run and np.array_equal(left.coordinates, right.coordinates)


def _difference(left: tuple[NodeReplica, ...], right: tuple[NodeReplica, ...]) -> str:
    one, other = left[0], right[0]
    names = [numerals.listed([replica.node for replica in group]) for group in (left, right)]
    if one.run != other.run or one.coordinates.shape != other.coordinates.shape:
        return f"{names[1]}: the replica belongs to another run than that of {names[0]}"
    places = np.flatnonzero(one.coordinates != other.coordinates)
    first = int(places[0])
    count = numerals.counted(len(places), "weight")
    return (
        f"{names[1]}: the replica differs from that of {names[0]} in {count}, "
        f"first in weight {first}: {other.name_value(first)} instead of {one.name_value(first)}{one.unit}"
    )
