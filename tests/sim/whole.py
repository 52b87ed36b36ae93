"""What must hold of one node, and of every two, at any moment; looked at every so often, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from p2psgd.core.events import Restored
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.snapshot_fetch import TAIL_PER_CAPACITY
from p2psgd.core.update_log import ENTRY_BYTES
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.update import parse_update
from tests.sim.agreement import Agreement
from tests.sim.ledger import Ledger, label
from tests.sim.outcome import Violation

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

UNTIL_STALL_FRAMES: Final = 4  # between two looks at the log a node makes no more than these by itself


@dataclass(frozen=True, slots=True)
class Grave:
    """What a life has applied, or had when it ended, the number of its view, and of that in which it became
    READY, None if it is not.
    """

    me: Origin
    rows: Mapping[Origin, int]
    view: int
    ready_in: int | None


def bury(daemon: Daemon) -> Grave:
    """A life as it is now."""
    replica = daemon.replica
    rows = {origin: row[0] for origin, row in replica.frontier._rows.items()}
    return Grave(replica.me, rows, replica.membership.view.number, daemon.ready_in)


def check_one(daemon: Daemon, ledger: Ledger | None) -> None:
    """A node's digest, log, cursors and acknowledgements; without a ledger of updates there are none."""
    replica = daemon.replica
    if not daemon.book.flipped and replica.lattice.digest != replica.lattice.recompute_digest():
        raise Violation("I9", f"the running digest of {label(daemon.me)} is not that of its weights")
    for peer in replica.peers.values():
        try:
            peer.check(replica.frontier, credit_bytes=replica.out.credit_bytes)
        except AssertionError as error:
            raise Violation("peer", f"{label(daemon.me)}, {peer.state} {peer.name}: {error}") from None
    if ledger is None:
        return
    _check_log(daemon, ledger)
    if not replica.node.quarantined:
        _check_pushed(replica)
    acknowledged = replica.tally.acknowledged
    if acknowledged > ledger.spread.get(daemon.me, 0):
        raise Violation(
            "acknowledgement",
            f"{label(daemon.me)} takes its {acknowledged} updates for acknowledged, but no "
            f"other node ever had more than {ledger.spread.get(daemon.me, 0)}",
        )


def check_restored(replica: Replica, restored: Restored | None) -> None:
    """Own updates that were on the disk are applied."""
    for frame in () if restored is None else restored.own:
        header, _ = parse_update(frame[PREFIX.size :], replica.spec.coordinates)
        if replica.frontier.sequence(Origin(header.node, header.incarnation)) < header.sequence:
            words = f"{label(replica.me)} lacks its node's update {header.sequence}, which was on its disk"
            raise Violation("disk", words)


def _check_pushed(replica: Replica) -> None:
    """I11: what a peer is sent depends on its own credit and on nobody else."""
    for peer in replica.peers.values():
        if peer.credit <= 0:
            continue
        for origin, cursor in peer.cursors.items():
            end = replica.frontier.sequence(origin) if cursor.last is None else cursor.last
            if not cursor.parked and cursor.next <= end:
                raise Violation(
                    "push",
                    f"{label(replica.me)} has credit for {label(peer.origin)} and does not send it update "
                    f"{cursor.next} of {label(origin)}",
                )
        if peer.feed is not None:
            raise Violation(
                "push", f"{label(replica.me)} does not go on with {label(peer.origin)}'s snapshot"
            )


def _check_log(daemon: Daemon, ledger: Ledger) -> None:
    replica, log, me = daemon.replica, daemon.replica.log, label(daemon.me)
    frame_bytes = max((len(entries[-1].frame) for entries in ledger.entries.values()), default=0)
    over = log.bytes_held + log.bytes_stored - log.capacity
    taken = replica.counters.snapshots_taken > 0 or replica.fetch.taking.donor is not None or log.untidy
    tail_bytes = TAIL_PER_CAPACITY * log.capacity * (1 + ENTRY_BYTES / UPDATE_HEADER_BYTES)
    tail_bytes *= taken or daemon.restored
    frames = UNTIL_STALL_FRAMES + daemon.round_updates + daemon.burst_updates
    if over > frames * (frame_bytes + 200) + tail_bytes:
        raise Violation("I7", f"the log of {me} is {over} bytes beyond its {log.capacity}")
    held = 0
    for origin in replica.frontier:
        trimmed_to, last = log.trimmed_to(origin), replica.frontier.sequence(origin)
        held += last - trimmed_to
        for sequence in {min(trimmed_to + 1, last), last} if trimmed_to < last else ():
            entry = ledger.entry(origin, sequence)
            if entry is None or log.frame(origin, sequence) != entry.frame:
                raise Violation("I5", f"the log of {me} lacks {label(origin)}'s update {sequence}")
    if held != len(log):
        raise Violation("I5", f"the log of {me} holds {len(log)} updates, by its floors {held}")


def check_all(
    daemons: list[Daemon], graves: Mapping[Origin, Grave], agreement: Agreement, *, logs: bool
) -> None:
    """Of every two nodes; `logs`: they hold updates for each other."""
    seen: dict[frozenset[tuple[Origin, tuple[int, int, int]]], Daemon] = {}
    for daemon in daemons:
        if daemon.book.flipped:
            continue
        other = seen.setdefault(frozenset(daemon.replica.frontier._rows.items()), daemon)
        if other.replica.lattice.digest != daemon.replica.lattice.digest:
            raise Violation(
                "I9", f"{label(daemon.me)} and {label(other.me)} have applied the same and differ"
            )
    incarnations = {daemon.me: bury(daemon) for daemon in daemons}
    for daemon in daemons if logs else ():
        view = daemon.replica.membership.view
        for member in view.members if daemon.replica.ready else ():
            last = incarnations.get(member) or graves.get(member)
            since = agreement.member_since(member, view.number)
            if agreement.member_since(daemon.me, view.number) > since:
                continue  # what this one gave up before it was admitted it gives by snapshot
            if last is None or last.ready_in is None or last.view < since:
                continue
            if last.ready_in <= view.number or agreement.holds(daemon.me, last.ready_in):
                _check_floors(daemon.replica, member, last.rows, daemon.came_without.get(member, {}))


def _check_floors(
    replica: Replica, member: Origin, rows: Mapping[Origin, int], came_without: Mapping[Origin, int]
) -> None:
    """I5, I10: nobody has given up what a READY member of its view lacks, unless that became READY in a later
    one, which was without this node: there nobody waits for it. What a snapshot came without is its donor's
    to answer for.
    """
    floor_of = replica.log.trimmed_to
    for origin in replica.frontier:
        trimmed_to = floor_of(origin)
        if trimmed_to and trimmed_to > max(rows.get(origin, 0), came_without.get(origin, 0)):
            raise Violation(
                "I5",
                f"{label(replica.me)} has given up {label(origin)} up to {trimmed_to}, while "
                f"{label(member)}, a READY member of its view, has applied {rows.get(origin, 0)}",
            )


def check_converged(daemons: Iterable[Daemon]) -> None:
    """I4: equal frontiers, digests and bytes."""
    for one, other in combinations(daemons, 2):
        a, b = one.replica, other.replica
        same = (
            a.frontier.rows() == b.frontier.rows()
            and a.lattice.digest == b.lattice.digest
            and a.lattice.coordinates.tobytes() == b.lattice.coordinates.tobytes()
        )
        if not same:
            raise Violation("I4", f"{label(one.me)} and {label(other.me)} differ after convergence")
