"""Are the replicas equal, now? What `p2psgd digest` prints: one node's answer about itself and its peers.

Two replicas are compared by what their nodes say in STATUS: for each origin the last sequence applied and
the running digest there. Where both have applied the same number, the digests must be equal, even while
training goes on. That they say so of the weights as they lie in memory is what the scrub adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from p2psgd.core.frontier import RING, Origin
from p2psgd.core.read_model import PeerView, ReplicaView
from p2psgd.observe.status import Part, ScrubStatus, Verdict
from p2psgd.wire.messages import FrontierRow

PEERS_MAX: Final = 256  # an answer must fit into one datagram


# ----------------------------------------------------------------------------
# How much of a run a replica holds, in the words of people: updates, or in a dense ring rounds.


def count_applied(row: FrontierRow) -> int:
    """Return the updates of this origin; of a dense ring, whose row's sequence bears the view too, rounds."""
    return row.steps if is_ring(row) else row.sequence


def is_ring(row: FrontierRow) -> bool:
    """Return whether this is the one row of a dense ring."""
    return Origin(row.node, row.incarnation) == RING


def unit_of(rows: Iterable[FrontierRow]) -> str:
    """Return the word for what is counted there."""
    return "round" if any(map(is_ring, rows)) else "update"


# ----------------------------------------------------------------------------
# The report.


class Difference(Part):
    """A place where two replicas have applied the same and are not equal."""

    id: str = "?"
    incarnation: int = 0
    sequence: int = 0
    count: int = 0


class PeerReport(Part):
    """The comparison of a peer's replica, by its last STATUS, with this node's."""

    node: str = "?"
    id: str = ""
    linked: bool = False
    ready: bool = False
    view: int = 0
    lacks: int = 0  # updates (or rounds) that we have and it has not,
    ahead: int = 0  # and the other way round
    verdict: Verdict = Verdict.UNKNOWN
    differs_at: Sequence[Difference] = ()


class DigestReport(Part):
    """The answer of a node to `p2psgd digest`. `bootstrap_expect`: how many nodes bootstrap the run, this one
    included.
    """

    node: str = "?"
    id: str = ""
    digest: str = "?"
    failure_timeout_s: float = 0.0
    view: int = 0
    bootstrap_expect: int = 0
    ready: bool = False
    waits: str = ""
    updates: int = 0
    unit: str = "update"
    scrub: ScrubStatus = ScrubStatus()
    peers: Sequence[PeerReport] = ()
    peers_total: int = 0
    differ_total: int = 0
    unknown_total: int = 0


def report_digest(replica: ReplicaView) -> DigestReport:
    """Compare a replica with those of its linked peers and with the members that are not linked."""
    rows = replica.frontier
    compared = [_compare(rows, peer) for peer in replica.peers.values()]
    compared += [
        PeerReport(node=each.name, id=f"{each.origin.node:016x}", verdict=Verdict.UNKNOWN)
        for each in replica.members
        if not each.linked
    ]
    compared.sort(key=lambda peer: list(Verdict).index(peer.verdict))
    return DigestReport(
        node=replica.name_of(replica.me.node),
        id=f"{replica.me.node:016x}",
        digest=f"{replica.digest:016x}",
        failure_timeout_s=replica.failure_timeout_s,
        view=replica.view.number,
        bootstrap_expect=replica.bootstrap_expect,
        ready=replica.ready,
        waits=replica.waits,
        updates=sum(map(count_applied, rows)),
        unit=unit_of(rows),
        scrub=ScrubStatus(**asdict(replica.scrub)),
        peers=compared[:PEERS_MAX],
        peers_total=len(compared),
        differ_total=sum(peer.verdict is Verdict.DIFFERS for peer in compared),
        unknown_total=sum(peer.verdict is Verdict.UNKNOWN for peer in compared),
    )


def _compare(rows: Sequence[FrontierRow], peer: PeerView) -> PeerReport:
    ours = {Origin(row.node, row.incarnation): row for row in rows}
    theirs: Mapping[Origin, FrontierRow] = peer.frontier or {}
    told = peer.frontier is not None
    lacks = sum(_excess(row, theirs.get(origin)) for origin, row in ours.items()) if told else 0
    ahead = sum(_excess(row, ours.get(origin)) for origin, row in theirs.items())
    differing = [
        row
        for origin, row in ours.items()
        if (other := theirs.get(origin)) and row.sequence == other.sequence and row.digest != other.digest
    ]
    agreeing = Verdict.AGREES if lacks or ahead else Verdict.IDENTICAL
    return PeerReport(
        node=peer.name,
        id=f"{peer.origin.node:016x}",
        linked=True,
        ready=peer.ready,
        view=peer.view,
        lacks=lacks,
        ahead=ahead,
        verdict=Verdict.UNKNOWN if not told else Verdict.DIFFERS if differing else agreeing,
        differs_at=[
            Difference(
                id=f"{row.node:016x}",
                incarnation=row.incarnation,
                sequence=row.sequence,
                count=count_applied(row),
            )
            for row in differing[:1]
        ],
    )


def _excess(row: FrontierRow, other: FrontierRow | None) -> int:
    """Return by how much a row is ahead: at least by 1 if it is at all, as the same round may be of a later
    view.
    """
    if other is None:
        return count_applied(row)
    return max(row.sequence > other.sequence, count_applied(row) - count_applied(other))
