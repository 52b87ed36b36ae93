"""Views of the membership, and the votes that a node must keep on disk to decide them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from p2psgd.core.frontier import INCARNATION_MAX, Origin
from p2psgd.wire.messages import (
    Accept,
    MemberRow,
    Promise,
    ViewNews,
    pack_members,
    pack_nodes,
    parse_members,
    parse_nodes,
)
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# A view: the numbered, agreed set of nodes whose acknowledgements count.
#
# Members are origins, not nodes: a daemon that restarts has lost what it had acknowledged, so its new
# incarnation is admitted like a joiner, by the view that replaces the old one. The nodes vote on the next
# view, in any incarnation, since votes are on disk.


NUMBER_MAX: Final = 2**62  # nobody gets there by deciding
PARSED_MAX: Final = 8  # views that are kept as they were parsed: the latest, and proposals of the next


@dataclass(frozen=True)
class View:
    """A view. Number 0 is the state before the run begins: no members, no acknowledgement counts."""

    number: int = 0
    members: tuple[Origin, ...] = ()  # ascending, one for each node
    forbidden: frozenset[int] = frozenset()
    cluster_id: int = 0  # tells runs that were founded apart from each other; 0 only for number 0
    since: tuple[int, ...] = ()  # for each member, the view since which it has been one without a break

    def __post_init__(self) -> None:
        if not self.since:
            object.__setattr__(self, "since", (self.number,) * len(self.members))

    @cached_property
    def incarnations(self) -> Mapping[int, int]:
        """The incarnation of each member, by node."""
        return dict(self.members)

    def member_since(self, origin: Origin) -> int | None:
        """Return the view since which this origin has been a member without a break, or None."""
        return self.since[self.members.index(origin)] if origin in self else None

    def __contains__(self, origin: Origin) -> bool:
        return self.incarnations.get(origin.node) == origin.incarnation

    def quorum(self, nodes: Set[int], two_nodes: str) -> bool:
        """Return whether the members among `nodes` may decide the next view; any two such sets overlap.

        `two_nodes` is the run's policy for a view of two: with "lower-id" the one with the lower id decides,
        with "stall" it takes both.
        """
        if two_nodes == "lower-id" and len(self.members) == 2:
            return self.members[0].node in nodes
        return self.is_majority(nodes)

    def is_majority(self, nodes: Set[int]) -> bool:
        """Return whether the members among `nodes` are more than half."""
        return 2 * len(nodes & self.incarnations.keys()) > len(self.members)

    def replace(self, admit: Mapping[int, int], remove: Set[int], forbid: Set[int]) -> View:
        """Return the next view: `admit` (incarnation by node) added or renewed, `remove` and `forbid` taken
        out.
        """
        gone = remove | forbid
        incarnations = {**self.incarnations, **admit}
        members = tuple(sorted(Origin(*life) for life in incarnations.items() if life[0] not in gone))
        cluster_id = self.cluster_id if self.number else _cluster_id_of(members)
        stayed = {each: number for each, number in self._rows() if each.node not in admit}
        since = tuple(stayed.get(each, self.number + 1) for each in members)
        return View(self.number + 1, members, self.forbidden | forbid, cluster_id, since)

    def _rows(self) -> Iterator[tuple[Origin, int]]:
        return zip(self.members, self.since, strict=True)

    @cached_property
    def packed_members(self) -> bytes:
        """The members in wire format."""
        return pack_members(MemberRow(*member, number) for member, number in self._rows())

    @cached_property
    def packed_forbidden(self) -> bytes:
        """The forbidden nodes in wire format."""
        return pack_nodes(self.forbidden)

    def news(self) -> ViewNews:
        """Return the VIEW message for this view, once it is decided."""
        return ViewNews(
            view=self.number,
            members=self.packed_members,
            forbidden=self.packed_forbidden,
            cluster_id=self.cluster_id,
        )


def parse_view(message: Accept | Promise | ViewNews) -> View:
    """Return the view that a message carries; PeerError if it is impossible."""
    return _parse_view(message.view, message.members, message.forbidden, message.cluster_id)


@lru_cache(maxsize=PARSED_MAX)
def _parse_view(number: int, packed_members: bytes, packed_forbidden: bytes, cluster_id: int) -> View:
    """Do so. Every linked member may send the same view, of a thousand members."""
    if number > NUMBER_MAX:
        raise PeerError(RejectCode.MESSAGE, f"view number {number} is above the limit of {NUMBER_MAX}")
    rows = parse_members(packed_members)
    members = tuple(Origin(row.node, row.incarnation) for row in rows)
    forbidden = frozenset(parse_nodes(packed_forbidden))
    view = View(number, members, forbidden, cluster_id, tuple(row.since for row in rows))
    if any(not 1 <= row.since <= view.number for row in rows):
        raise PeerError(
            RejectCode.MESSAGE,
            f"view {view.number} has a member since a view that is not between 1 and {view.number}",
        )
    if not members:
        raise PeerError(RejectCode.MESSAGE, f"view {view.number} has no members")
    if any(member.incarnation > INCARNATION_MAX for member in members):
        raise PeerError(
            RejectCode.MESSAGE, f"view {view.number} has a member with an incarnation above {INCARNATION_MAX}"
        )
    if forbidden & view.incarnations.keys():
        raise PeerError(RejectCode.MESSAGE, f"view {view.number} has a member that it forbids")
    if view.number == 1 and view.cluster_id != _cluster_id_of(members):
        raise PeerError(RejectCode.MESSAGE, "view 1 has a cluster id that does not follow from its members")
    return view


def _cluster_id_of(members: tuple[Origin, ...]) -> int:
    packed = pack_members(MemberRow(*member, 1) for member in members)
    return int.from_bytes(hashlib.sha256(packed).digest()[:8], "little")


# ----------------------------------------------------------------------------
# Votes: the durable half of deciding views. A node must never forget them while it has a vote.


class Ballot(NamedTuple):
    """The number of an attempt to decide; ordered, and unique by the node that makes it."""

    round: int = 0
    node: int = 0


NO_VIEW: Final = View()
NO_BALLOT: Final = Ballot()


@dataclass(frozen=True, slots=True)
class Votes:
    """The latest decided view, and promises and acceptance for the one after it (`view.number` + 1)."""

    view: View = NO_VIEW
    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    value: View | None = None  # what was accepted at that ballot


NO_VOTES: Final = Votes()
