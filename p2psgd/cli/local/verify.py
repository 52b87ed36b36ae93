"""Verification of a local run: convergence and equal replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base import formatting
from p2psgd.base.formatting import printable
from p2psgd.ipc.script_state import may_differ, trained_digest
from p2psgd.observe.status import NodeStatus
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.update import weights_of

# ----------------------------------------------------------------------------
# Are the replicas the same? By every byte, and by the digests that the nodes themselves vouch for.
#
# The digests alone would do if there were no bugs: this is the check that would find one. Bytes are compared
# with bytes, and each digest is computed again from the bytes, so that a digest that only its own
# bookkeeping believes in is found too. Pure: copies of replicas in, verdict out.


@dataclass(frozen=True, slots=True, eq=False)
class NodeReplica:
    """A copy of one node's replica: int32 coordinates (C,), of which the first `weight_count` are the weights
    and mean what the run's mode says.
    """

    node: str
    mode: str
    quantum_log2: int
    digest: int  # what the daemon says it is
    coordinates: NDArray[np.int32]
    weight_count: int
    trained: NDArray[np.float64] | None = None  # (P,) that its script keeps: then these are its weights
    ended: str = ""  # what they are of; only weights of the same must be equal

    @property
    def weights(self) -> NDArray[np.float32]:
        """The weights as float32 (P,): exact, a coordinate has 24 bits and the quantum is a power of two.
        Trained ones are rounded.
        """
        if self.trained is not None:
            return self.trained.astype(np.float32)
        return weights_of(
            self.coordinates[: self.weight_count], mode=self.mode, quantum_log2=self.quantum_log2
        )

    @property
    def run(self) -> tuple[str, int]:
        """Return what two replicas of one run have in common."""
        return self.mode, self.quantum_log2

    @property
    def content_digest(self) -> int:
        """Return the digest of the weights, whether trained by the script or those of the replica."""
        return self.digest if self.trained is None else trained_digest(self.trained)

    def name_value(self, index: int) -> str:
        """Return a weight for people, exactly: in `unit`, of a dense ring with its bits."""
        if self.unit:
            return str(self.coordinates[index])
        return f"{self.weights[index]:.9g} ({int(self.coordinates[index]) % 2**32:08x})"

    @property
    def unit(self) -> str:
        """Return the unit that follows the result of `name_value`."""
        return "" if parse_mode(self.mode).dense else " quanta"


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The verdict over some replicas: those of equal bytes are together in one group."""

    groups: tuple[tuple[NodeReplica, ...], ...]
    wrong_digests: tuple[str, ...]  # sentences

    @property
    def identical(self) -> bool:
        """Return whether all replicas are the same bytes, and every digest is theirs."""
        return len(self.groups) == 1 and not self.wrong_digests

    @property
    def digest(self) -> int | None:
        """The digest of all replicas; None when they differ."""
        return self.groups[0][0].content_digest if self.identical else None

    @property
    def findings(self) -> list[str]:
        """Return what is wrong, in sentences; nothing when the replicas are identical."""
        sentences = list(self.wrong_digests)
        for group in self.groups[1:]:
            sentences.append(_difference(self.groups[0], group))
        return sentences

    @property
    def ended_apart(self) -> bool:
        """Return whether the replicas are equal, and only such trained weights differ as are of different
        ends of the scripts.
        """
        ends = [(replica.ended, number) for number, group in enumerate(self.groups) for replica in group]
        return (
            len(self.groups) > 1
            and not self.wrong_digests
            and all(_same_replica(self.groups[0][0], group[0]) for group in self.groups)
            and may_differ(ends)
        )

    @property
    def ends(self) -> str:
        """Return what each node has of its script, in words."""
        return formatting.listed(
            [f"{replica.node} has {replica.ended}" for group in self.groups for replica in group]
        )


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
                held = group[0]
                group.append(dataclasses.replace(replica, coordinates=held.coordinates, trained=held.trained))
                break
        else:
            groups.append([replica])
    return Proof(tuple(tuple(group) for group in groups), tuple(wrong))


def _same(left: NodeReplica, right: NodeReplica) -> bool:
    if left.trained is None or right.trained is None:
        return left.trained is right.trained and _same_replica(left, right)
    return _same_replica(left, right) and np.array_equal(
        left.trained.view(np.uint64), right.trained.view(np.uint64)
    )


def _same_replica(left: NodeReplica, right: NodeReplica) -> bool:
    return left.run == right.run and np.array_equal(left.coordinates, right.coordinates)


def _difference(left: tuple[NodeReplica, ...], right: tuple[NodeReplica, ...]) -> str:
    one, other = left[0], right[0]
    names = [formatting.listed([replica.node for replica in group]) for group in (left, right)]
    if one.run != other.run or one.coordinates.shape != other.coordinates.shape:
        return f"{names[1]}: the replica belongs to another run than that of {names[0]}"
    if np.array_equal(one.coordinates, other.coordinates):
        digests = f"{other.content_digest:016x} and {one.content_digest:016x}"
        if one.ended != other.ended:
            other_has, one_has = (each.ended or "no evaluated point" for each in (other, one))
            return (
                f"the scripts have come to different ends: {names[1]} to {other_has}, {names[0]} to"
                f" {one_has}; digests {digests}"
            )
        return f"{names[1]}: the trained weights differ from those of {names[0]}: digests {digests}"
    places = np.flatnonzero(one.coordinates != other.coordinates)
    first = int(places[0])
    count = formatting.counted(len(places), "weight")
    return (
        f"{names[1]}: the replica differs from that of {names[0]} in {count}, "
        f"first in weight {first}: {other.name_value(first)} instead of {one.name_value(first)}{one.unit}"
    )


# ----------------------------------------------------------------------------
# When have all nodes applied the same updates? Pure: statuses and times in, answers out.
#
# A frontier says how many updates of each origin a node has applied. StatusSender are asked one after the
# other, so two looks in a row must show the same, equal frontiers. No progress at all for a limit means that
# they will not become equal.


Origin = tuple[str, int]  # (node id, incarnation)
RING: Origin = (f"{0:016x}", 0)  # whose one row stands for all rounds of a dense ring


@dataclass(frozen=True, slots=True)
class Frontier:
    """The number of updates of each origin that a node has applied, the origins' names for people, and how
    many contributions of the node no update of an owner covers.
    """

    applied: Mapping[Origin, int]
    names: Mapping[Origin, str]
    uncovered: int = 0


def frontier_of(status: NodeStatus) -> Frontier:
    """Read a status; an origin without updates is as good as none."""
    names = {(row.id, row.incarnation): printable(row.node or row.id) for row in status.frontier}
    if status.id:
        names[status.id, status.incarnation] = printable(status.node)
    applied = {(row.id, row.incarnation): row.sequence for row in status.frontier if row.sequence}
    return Frontier(applied, names, status.owners.waiting if status.owners else 0)


def who_lacks_what(frontiers: Mapping[str, Frontier]) -> list[str]:
    """Return a sentence for each node and origin where the node is behind the foremost one."""
    foremost: dict[Origin, int] = {}
    names: dict[Origin, str] = {}
    for frontier in frontiers.values():
        names |= frontier.names
        for origin, sequence in frontier.applied.items():
            foremost[origin] = max(sequence, foremost.get(origin, 0))
    return [
        f"{node} has not completed the last round of the ring"
        if origin == RING
        else f"{node} lacks {formatting.counted(missing, 'update')} of {names[origin]}"
        for node, frontier in frontiers.items()
        for origin, sequence in foremost.items()
        if (missing := sequence - frontier.applied.get(origin, 0))
    ] + [
        f"{formatting.counted(frontier.uncovered, 'contribution')} of {node} are not covered"
        for node, frontier in frontiers.items()
        if frontier.uncovered
    ]


SETTLING_S: Final = 60.0


class Convergence:
    """Follows the frontiers of the live nodes until they are equal, and have been for `settled_s`, or stand
    still for `limit_s`.
    """

    def __init__(self, limit_s: float, now: float, *, settled_s: float = 0.0) -> None:
        self._limit_s = limit_s
        self._settled_s = settled_s
        self._moved = self._looked = now
        self._first_equal: float | None = None  # when they were, for the first time
        self.equal_at = now  # and after they had moved for the last time
        self._last: dict[str, Mapping[Origin, int]] = {}
        self._equal_looks = 0

    def look(self, frontiers: Mapping[str, Frontier], now: float) -> None:
        """Take in the newest frontiers of all live nodes."""
        current = {node: frontier.applied for node, frontier in frontiers.items()}
        if current != self._last:
            self._last, self._moved, self._equal_looks = current, now, 0
        self._looked = now
        if not who_lacks_what(frontiers):
            self._equal_looks += 1
            if self._equal_looks <= 2:
                self.equal_at = now
            if self._first_equal is None:
                self._first_equal = now

    @property
    def reached(self) -> bool:
        """Return whether two looks in a row found the same frontier everywhere, and nothing has moved since
        for `settled_s`; of who goes on for SETTLING_S that is not wanted.
        """
        if self._equal_looks < 2 or self._first_equal is None:
            return False
        settled = self._looked - self._moved >= self._settled_s
        return settled or self._looked - self._first_equal >= SETTLING_S

    def stalled(self, now: float) -> bool:
        """Return whether nothing has moved for the limit."""
        return not self.reached and now - self._moved >= self._limit_s
