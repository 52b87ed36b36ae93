"""The lies: small functions. Each changes the STATUS that is about to go to one hearer, or returns frames to
be sent after it; None: there is nothing to lie about now.

All frames are valid as frames. While a lie is told that is `covered`, all that README.md lists must hold; the
others are told only to see that nobody crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from p2psgd.core.frontier import RING, Origin
from p2psgd.core.paxos import ROUND_MAX
from p2psgd.core.view import NUMBER_MAX
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import (
    ORIGINS_MAX,
    Accept,
    Accepted,
    ConfirmedRow,
    Fetch,
    FrontierRow,
    Goodbye,
    MemberRow,
    Message,
    Prepare,
    Promise,
    RingBegin,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Trimmed,
    ViewNews,
    pack_frontier,
    pack_members,
    pack_message,
)
from tests.sim.liar.speaker import Speaker, Told
from tests.sim.places import STRIDE

U64: Final = 2**64
INVENTED: Final = 1000  # lives that never were have node ids from here on
INVENTED_LIVES: Final = 2  # of which there are updates; a run that saw 1,024 takes no new life at all
AHEAD_MAX: Final = 50

Tell = Callable[[Speaker, Origin, Told], "list[bytes] | None"]


# -- views that it says it knows


def no_view(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It knows no view."""
    told.view = told.cluster_id = 0
    return []


def earlier_view(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It knows an earlier view, whatever it is told."""
    if liar.view.number < 2:
        return None
    told.view, told.cluster_id = liar.chance.randint(1, liar.view.number - 1), liar.view.cluster_id
    return []


def later_view(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It knows a later view that nobody ever decided, and never tells it. The number stays: one that goes
    back to an earlier view than it claimed is found out at once.
    """
    told.view, told.cluster_id = liar.view.number + 1 + liar.me.node % 3, liar.view.cluster_id
    return []


def absurd_view(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It knows a view with a number that no run gets to."""
    numbers = (liar.view.number + 2**33, NUMBER_MAX, NUMBER_MAX + 1, U64 - 1)
    told.view, told.cluster_id = liar.chance.choice(numbers), liar.view.cluster_id
    return []


# -- what it says it has applied, and others


def others_ahead(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has more of every origin but the hearer's than anybody."""
    held = liar.chance.random() < 0.5
    for origin, row in told.rows.items():
        if origin != hearer:
            last = row.sequence + liar.chance.randint(1, AHEAD_MAX)
            trimmed_to = 0 if held else last
            told.rows[origin] = row._replace(
                sequence=last, digest=liar.chance.getrandbits(64), trimmed_to=trimmed_to
            )
    return []


def hearer_ahead(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has more of the hearer's own updates than the hearer made."""
    last = liar.sequence_at(hearer, hearer) + 1000
    told.rows[hearer] = FrontierRow(*hearer, last, liar.chance.getrandbits(64))
    return []


def other_digests(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has applied the same, and comes to other digests."""
    for origin in told.rows:
        last = liar.sequence_at(hearer, origin)
        if last:
            digest = liar.digest_at(hearer, origin) ^ 1
            told.rows[origin] = FrontierRow(*origin, last, digest, trimmed_to=last)
    return [] if told.rows else None


def invented_rows(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has updates of lives that never were, as many as a run may have."""
    wanted = ORIGINS_MAX if liar.may_disturb() else liar.chance.choice((3, 40))
    count = min(wanted, ORIGINS_MAX - len(told.rows))
    for number in range(count):
        origin = Origin(INVENTED + STRIDE * number, 1)
        told.rows[origin] = FrontierRow(*origin, 7, number, trimmed_to=liar.chance.choice((0, 7)))
    return []


def has_nothing(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has applied nothing at all, ever."""
    told.rows.clear()
    return []


def all_durable(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has everything in a checkpoint."""
    for origin, row in told.rows.items():
        told.rows[origin] = row._replace(durable=row.sequence)
    return []


def others_have_all(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """All the others have applied everything."""
    _vouch(liar, hearer, told, view=liar.view.number)
    for origin, row in told.rows.items():
        told.rows[origin] = row._replace(least=row.sequence)
    return [] if told.confirmed else None


def others_know_all_views(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """All the others know every view there will ever be."""
    _vouch(liar, hearer, told, view=liar.chance.choice((liar.view.number + 1, NUMBER_MAX, U64 - 1)))
    return [] if told.confirmed else None


def others_lack_all(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """All the others have applied next to nothing, and know an old view."""
    _vouch(liar, hearer, told, view=1)
    for origin, row in told.rows.items():
        told.rows[origin] = row._replace(least=min(1, row.sequence))
    return [] if told.confirmed else None


def _vouch(liar: Speaker, hearer: Origin, told: Told, *, view: int) -> None:
    """By a member for whoever is linked to the hearer, which hears those itself; from outside for all."""
    members = liar.view.members if liar.is_outside(hearer) else liar.members_linked_to(hearer)
    for member in members:
        if member not in (hearer, liar.me):
            told.confirmed[member.node] = ConfirmedRow(*member, view)


def is_ready(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It is READY."""
    told.ready = True
    return []


def hears_nobody(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It hears nobody."""
    told.confirmed.clear()
    return []


def wants_all_out(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It is READY and wants every other member out, or every one that there is."""
    told.ready = True
    told.evict_requests = set(liar.view.incarnations) - ({liar.me.node} if liar.me.node % 2 else set())
    return []


# -- news of views


def _news(liar: Speaker, number: int, *, cluster_id: int, incarnations: list[Origin] | None = None) -> bytes:
    members = pack_members(MemberRow(*life, 1) for life in incarnations or [liar.me])
    return pack_message(ViewNews(view=number, members=members, forbidden=b"", cluster_id=cluster_id))


def news_of_the_past(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """An earlier view had other members."""
    view = liar.view_of(hearer)
    return [_news(liar, view.number - 1, cluster_id=view.cluster_id)] if view.number > 2 else None


def other_news(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """The view that the hearer knows has other members."""
    view = liar.view_of(hearer)
    return [_news(liar, view.number, cluster_id=view.cluster_id)] if view.number > 1 else None


def news_of_another_run(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """The next view, of a run that was founded elsewhere."""
    view = liar.view_of(hearer)
    return [_news(liar, view.number + 1, cluster_id=view.cluster_id ^ 1)] if view.number else None


def news_from_afar(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """A view so far ahead that nobody can have decided those between."""
    view = liar.view_of(hearer)
    number = liar.chance.choice((view.number + 2**33, NUMBER_MAX, NUMBER_MAX + 1, U64 - 1))
    return [_news(liar, number, cluster_id=view.cluster_id)] if view.number else None


def news_of_the_next(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """The next view, as nobody decided it: with the right cluster id it is taken on trust."""
    view = liar.view_of(hearer)
    if not view.number:
        return None
    kept = [life for life in view.members if liar.chance.random() < 0.5 and life.node != liar.me.node]
    incarnations = liar.chance.choice(([liar.me], sorted([*kept, liar.me]), kept or [liar.me]))
    return [
        _news(
            liar,
            view.number + liar.chance.randint(1, 2),
            cluster_id=view.cluster_id,
            incarnations=incarnations,
        )
    ]


# -- votes


def _promise(liar: Speaker, hearer: Origin, round_: int, node: int) -> Promise:
    """That something was accepted long ago: a view with nobody but the liar, and nobody forbidden."""
    view = liar.view_of(hearer)
    members = pack_members([MemberRow(*liar.me, 1)])
    return Promise(
        view=view.number + 1,
        round=round_,
        node=node,
        accepted_round=2**40,
        accepted_node=liar.me.node,
        members=members,
        forbidden=b"",
        cluster_id=view.cluster_id,
    )


def _ballot(liar: Speaker, hearer: Origin) -> tuple[int, int]:
    """The hearer's own, if it has one; else one that it may be about to choose."""
    attempt = liar.attempt_of(hearer)
    return (liar.chance.randint(1, 3), hearer.node) if attempt is None else attempt.ballot


def strangers_votes(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """PROMISE and ACCEPTED for the hearer's own ballot, ACCEPT and PREPARE, from one that has no vote."""
    view = liar.view_of(hearer)
    if not view.number or not liar.is_outside(hearer):
        return None
    return _all_votes(liar, hearer)


def members_votes(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """The same from a member: the hearer cannot know that they are made up."""
    return _all_votes(liar, hearer) if liar.view_of(hearer).number else None


def _all_votes(liar: Speaker, hearer: Origin) -> list[bytes]:
    return [pack_message(each) for each in _votes(liar, hearer, *_ballot(liar, hearer))]


def _votes(liar: Speaker, hearer: Origin, round_: int, node: int) -> list[Message]:
    view, me = liar.view_of(hearer), liar.me
    number, mine = view.number + 1, round_ + 2**20
    members = pack_members([MemberRow(*me, 1)])
    return [
        _promise(liar, hearer, round_, node),
        Accepted(view=number, round=round_, node=node),
        Prepare(view=number, round=mine, node=me.node),
        Accept(
            view=number,
            round=mine,
            node=me.node,
            members=members,
            forbidden=b"",
            cluster_id=view.cluster_id,
        ),
    ]


def votes_unasked(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """PROMISE and ACCEPTED for ballots of its own, of which nobody asked."""
    number = liar.view_of(hearer).number + 1
    round_ = liar.chance.randint(1, 2**20)
    accepted = Accepted(view=number, round=round_, node=liar.me.node)
    return [pack_message(_promise(liar, hearer, round_, liar.me.node)), pack_message(accepted)]


def high_ballots(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """PREPARE with a round that is billions beyond; a member sends few, or nothing could be decided."""
    view = liar.view_of(hearer)
    if not view.number or not (liar.is_outside(hearer) or liar.may_disturb()):
        return None
    attempt = liar.attempt_of(hearer)
    round_ = (0 if attempt is None else attempt.ballot.round) + 2**30
    return [pack_message(Prepare(view=view.number + 1, round=min(round_, ROUND_MAX), node=liar.me.node))]


def impossible_ballots(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """PREPARE with a round that nobody gets to."""
    number = liar.view_of(hearer).number + 1
    return [pack_message(Prepare(view=number, round=liar.chance.choice((ROUND_MAX + 1, U64 - 1)), node=1))]


# -- updates


def updates_of_the_ring(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates of origin (0, 0), which is the row of a dense ring."""
    frame, _ = liar.make_update(RING, liar.sequence_at(hearer, RING) + 1, liar.digest_at(hearer, RING))
    return [frame]


def own_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates of its own that no trainer made, the same to all."""
    return liar.next_updates(hearer, liar.me)


def invented_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates of lives that never were, the same to all."""
    origin = Origin(INVENTED + STRIDE * liar.chance.randrange(INVENTED_LIVES), 1)
    return liar.next_updates(hearer, origin)


def updates_of_the_hearer(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates that the hearer is said to have made."""
    frame, _ = liar.make_update(hearer, liar.sequence_at(hearer, hearer) + 1000, 0)
    return [frame]


def unfitting_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates of others that do not fit their digest."""
    origin = _other(liar, hearer)
    if origin is None:
        return None
    digest = liar.digest_at(hearer, origin) ^ 1
    return [liar.make_update(origin, liar.sequence_at(hearer, origin) + 1, digest)[0]]


def broken_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates whose checksum is wrong."""
    frame = bytearray(liar.make_update(liar.me, 1, 0)[0])
    frame[PREFIX.size + 60] ^= 1
    return [bytes(frame)]


def forged_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Updates of others that fit their digest: without signatures nobody can tell them from true ones."""
    origin = _other(liar, hearer)
    if origin is None:
        return None
    digest = liar.digest_at(hearer, origin)
    return [liar.make_update(origin, liar.sequence_at(hearer, origin) + 1, digest)[0]]


def two_faced_updates(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """Its own updates, to each hearer others."""
    digest = liar.digest_at(hearer, liar.me)
    return [liar.make_update(liar.me, liar.sequence_at(hearer, liar.me) + 1, digest)[0]]


def _other(liar: Speaker, hearer: Origin) -> Origin | None:
    others = sorted(origin for origin in liar.rows if origin not in (hearer, liar.me))
    return liar.chance.choice(others) if others else None


# -- asking


def asks_for_anything(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """FETCH of all that ever was, and more."""
    origins = [*sorted(liar.rows), Origin(INVENTED, 1), RING]
    node, incarnation = liar.chance.choice(origins)
    first = liar.chance.choice((1, 1, 2**63))
    return [pack_message(Fetch(node=node, incarnation=incarnation, first=first, last=U64 - 1))]


def has_trimmed_all(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """TRIMMED of every origin, to whoever asked and who did not."""
    trimmed_to = liar.chance.choice((1, 10, U64 - 1))
    gaps = (
        Trimmed(node=each.node, incarnation=each.incarnation, trimmed_to=trimmed_to)
        for each in sorted(liar.rows)
    )
    return [pack_message(each) for each in gaps]


def asks_for_snapshots(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """SNAPSHOT_REQUEST again and again."""
    return [pack_message(SnapshotRequest(view=liar.view.number))]


def snapshots_unasked(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """A snapshot that nobody asked for."""
    return broken_snapshot(liar, hearer)


def snapshots_that_break(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It has what no log holds. Who asks for its snapshot is given one that does not have its digest."""
    told.ready = True
    last = told.rows[liar.me].sequence if liar.me in told.rows else 0
    told.rows[liar.me] = FrontierRow(*liar.me, last + 5, 5, trimmed_to=last + 5)
    return []


def alone_ahead(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """It is READY, has updates that no log holds, and nothing else: to take its snapshot would lose all."""
    told.ready = True
    told.rows.clear()
    told.rows[liar.me] = FrontierRow(*liar.me, 1000, 5, trimmed_to=1000)
    return []


def snapshots_that_fit(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """The same with coordinates that are what it says, and wrong."""
    return snapshots_that_break(liar, hearer, told)


def broken_snapshot(liar: Speaker, hearer: Origin) -> list[bytes]:
    """What is given to who asks."""
    rows = sorted(liar.rows.values())
    digest = (liar.initial_digest + sum(row.digest for row in rows)) % U64
    meta = SnapshotMeta(frontier=pack_frontier(rows), digest=digest)
    chunk = pack_frame(FrameType.SNAPSHOT_CHUNK, bytes(4 * liar.coordinates))
    return [pack_message(meta), chunk, pack_message(SnapshotEnd(reason="", tail=0))]


def fitting_snapshot(liar: Speaker, hearer: Origin) -> list[bytes]:
    """The same, with a row of the liar's own that makes up for the difference."""
    weights = bytes(4 * liar.coordinates)  # of which the digest is 0
    rows = {origin: row for origin, row in liar.rows.items() if origin != liar.me}
    mine = -(liar.initial_digest + sum(row.digest for row in rows.values())) % U64
    last = liar.rows[liar.me].sequence if liar.me in liar.rows else 0
    rows[liar.me] = FrontierRow(*liar.me, last + 5, mine)
    meta = SnapshotMeta(frontier=pack_frontier(list(rows.values())), digest=0)
    chunk = pack_frame(FrameType.SNAPSHOT_CHUNK, weights)
    return [pack_message(meta), chunk, pack_message(SnapshotEnd(reason="", tail=0))]


# -- other words


def farewells(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """GOODBYE again and again, from one that does not go."""
    return [pack_message(Goodbye(sequence=0))]


def begins_a_ring(liar: Speaker, hearer: Origin, told: Told) -> list[bytes] | None:
    """RING_BEGIN in a run that has none."""
    begin = RingBegin(view=liar.view.number + 1, generation=1, round=1, digest=0)
    return [pack_message(begin)]


@dataclass(frozen=True, slots=True)
class Kind:
    """`named`: whoever hears it must in the end say who lies. `outside`: only who has no vote tells it.
    `often`: it is drawn more often.
    """

    tell: Tell
    named: bool = False
    covered: bool = True
    outside: bool = False
    often: bool = False
    answer: Callable[[Speaker, Origin], list[bytes]] | None = None  # to SNAPSHOT_REQUEST

    @property
    def name(self) -> str:
        """What a scenario calls it."""
        return self.tell.__name__.replace("_", " ")


_KINDS: Final = (
    Kind(no_view),
    Kind(earlier_view),
    Kind(later_view, named=True, often=True),
    Kind(absurd_view, named=True),
    Kind(others_ahead, often=True),
    Kind(hearer_ahead, named=True),
    Kind(other_digests, named=True),
    Kind(invented_rows, often=True),
    Kind(has_nothing),
    Kind(all_durable),
    Kind(others_have_all, often=True),
    Kind(others_know_all_views, often=True),
    Kind(others_lack_all),
    Kind(is_ready),
    Kind(hears_nobody),
    Kind(wants_all_out, often=True),
    Kind(news_of_the_past),
    Kind(other_news, named=True),
    Kind(news_of_another_run, named=True),
    Kind(news_from_afar, named=True),
    Kind(strangers_votes, outside=True, often=True),
    Kind(votes_unasked),
    Kind(high_ballots),
    Kind(impossible_ballots, named=True),
    Kind(updates_of_the_ring, named=True),
    Kind(own_updates),
    Kind(invented_updates),
    Kind(updates_of_the_hearer, named=True),
    Kind(unfitting_updates),  # not looked at by a node whose log has no room
    Kind(broken_updates, named=True),
    Kind(asks_for_anything),
    Kind(has_trimmed_all),
    Kind(asks_for_snapshots),
    Kind(snapshots_unasked),
    Kind(snapshots_that_break, often=True, answer=broken_snapshot),
    Kind(alone_ahead, often=True),
    Kind(farewells),
    Kind(begins_a_ring, named=True),
    Kind(news_of_the_next, covered=False),
    Kind(members_votes, covered=False),
    Kind(forged_updates, covered=False),
    Kind(two_faced_updates, covered=False),
    Kind(snapshots_that_fit, covered=False, answer=fitting_snapshot),
)
LIES: Final = {kind.name: kind for kind in _KINDS}
