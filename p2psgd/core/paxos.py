"""Decide the view after the known one: single-decree Paxos among the nodes of that view [Lamport 1998]
(VIEWS.md, 17).

Every node is an acceptor, and a proposer from `propose` on; both halves use the same messages, the node's own
answers included. Whatever binds a node is on disk before it is sent: answers wait for the saving of their
votes, and a ballot is asked about only once the node's own promise of it is saved, so that no later
incarnation uses it again. What to propose, when, and when to try again is membership's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.effects import Effect, SaveVotes, Send
from p2psgd.core.frontier import Origin
from p2psgd.core.view import NO_BALLOT, Ballot, View, Votes, parse_view
from p2psgd.wire.messages import Accept, Accepted, Message, Prepare, Promise, pack_message
from p2psgd.wire.reject import PeerError, RejectCode

ROUNDS_SKIPPED_MAX: Final = 2**32  # more than that is a wrong bit
ROUND_MAX: Final = 2**62  # nobody gets there by trying; leaves room to go higher than any round heard of


@dataclass(slots=True)
class Attempt:
    """A ballot of this node; `promised` and `accepted` are the nodes that answered."""

    ballot: Ballot
    proposal: View
    found: Ballot = NO_BALLOT  # the highest acceptance in any promise, and
    value: View | None = None  # its value; in phase 2 the one to accept
    promised: set[int] = field(default_factory=set)
    accepting: bool = False  # phase 2
    accepted: set[int] = field(default_factory=set)


class Consensus:
    """The durable votes of one node, and its attempt if it makes one."""

    def __init__(
        self,
        me: Origin,
        votes: Votes,
        *,
        links: Mapping[int, Origin],
        quorum: Callable[[Set[int]], bool],
        order: Callable[[Effect], None],
    ) -> None:
        """Args: `links`, the linked incarnation by node, kept up to date by the owner; `quorum`, whether
        these nodes may decide the next view. `order` is given SaveVotes and Send.
        """
        self.votes = votes
        self.attempt: Attempt | None = None
        self._me = me
        self._links = links
        self._quorum = quorum
        self._order = order
        self._revision = 0
        self._saved = 0
        self._round_heard = 0
        self._held: dict[tuple[Origin, type[Message]], tuple[int, Promise | Accepted]] = {}

    def propose(self, proposal: View) -> None:
        """Begin an attempt to decide `proposal`, in place of the one under way; a value that may have been
        decided already goes first.
        """
        assert proposal.number == self.votes.view.number + 1, (proposal.number, self.votes.view.number)
        ballot = Ballot(max(self.votes.promised.round, self._round_heard) + 1, self._me.node)
        self.attempt = Attempt(ballot, proposal)
        self._promise(self._me, ballot)

    def abandon(self) -> None:
        """Give up the attempt, unless its value was sent out already: that is seen through."""
        if self.attempt is not None and not self.attempt.accepting:
            self.attempt = None

    def ask(self, peer: Origin) -> None:
        """Ask a newly linked peer too."""
        attempt, view = self.attempt, self.votes.view
        if attempt is None or self._me.node not in attempt.promised:
            return
        if view.number and peer.node not in view.incarnations:
            return
        number, ballot = view.number + 1, attempt.ballot
        if not attempt.accepting:
            self._send(peer, Prepare(view=number, round=ballot.round, node=ballot.node))
            return
        value = attempt.value
        assert value is not None, attempt
        accept = Accept(
            view=number,
            round=ballot.round,
            node=ballot.node,
            members=value.packed_members,
            forbidden=value.packed_forbidden,
            cluster_id=value.cluster_id,
        )
        self._send(peer, accept)

    def forget(self, peer: Origin) -> None:
        """Drop the answers that wait for `peer`, whose link is gone."""
        self._held.pop((peer, Promise), None)
        self._held.pop((peer, Accepted), None)

    def on_message(self, peer: Origin, message: Prepare | Promise | Accept | Accepted) -> None:
        """Take in a linked peer's message; PeerError if it is impossible."""
        view, highest = self.votes.view, min(ROUND_MAX, self.votes.promised.round + ROUNDS_SKIPPED_MAX)
        if message.round > highest:
            raise PeerError(
                RejectCode.MESSAGE, f"round {message.round} of deciding a view is beyond {highest}"
            )
        if message.view <= view.number and isinstance(message, Prepare | Accept):
            self._send(peer, view.news())
        if message.view != view.number + 1:
            return  # late, or the news of the view between have not come yet
        if view.number and peer.node not in view.incarnations:
            return  # it has no vote, and what it says that it accepted was never counted
        ballot = Ballot(message.round, message.node)
        match message:
            case Prepare():
                self._promise(peer, ballot)
            case Accept():
                self._accept(peer, ballot, self._parse_next(message))
            case Promise() | Accepted():
                self._count(peer, message)

    def saved(self, revision: int) -> None:
        """Send the answers that waited for the votes of this revision, which are on disk now."""
        self._saved = max(self._saved, revision)
        due = {key: answer for key, (held, answer) in self._held.items() if held <= self._saved}
        for key in due:
            del self._held[key]
        for (asker, _), answer in due.items():
            self._send(asker, answer)

    def learn(self, view: View) -> None:
        """Take over `view`, which was decided and is newer than the known one."""
        assert view.number > self.votes.view.number, (view.number, self.votes.view.number)
        self.attempt = None
        self._round_heard = 0
        self._save(Votes(view))

    def check_successor(self, view: View) -> None:
        """Raise PeerError if a view has another cluster id, or comes after the one known here and does not
        forbid all nodes that this one does.
        """
        known = self.votes.view
        if known.number and view.cluster_id != known.cluster_id:
            words = (
                f"its view {view.number} has cluster id {view.cluster_id:016x}, view {known.number} here "
                f"{known.cluster_id:016x}: the run was bootstrapped twice, in two places"
            )
            raise PeerError(RejectCode.CLUSTER_ID, words)
        if view.number > known.number and not known.forbidden <= view.forbidden:
            words = (
                f"its view {view.number} no longer forbids a node that view {known.number} forbids for good"
            )
            raise PeerError(RejectCode.VIEW, words)

    def _parse_next(self, message: Accept | Promise) -> View:
        view = parse_view(message)
        self.check_successor(view)
        return view

    # the acceptor

    def _promise(self, asker: Origin, ballot: Ballot) -> None:
        if ballot > self.votes.promised:
            self._save(dataclasses.replace(self.votes, promised=ballot))
        # Also a refusal contains all: its ballot may be one that the asker asked about in the meantime.
        promised, accepted, value = self.votes.promised, self.votes.accepted, self.votes.value
        answer = Promise(
            view=self.votes.view.number + 1,
            round=promised.round,
            node=promised.node,
            accepted_round=accepted.round,
            accepted_node=accepted.node,
            members=b"" if value is None else value.packed_members,
            forbidden=b"" if value is None else value.packed_forbidden,
            cluster_id=0 if value is None else value.cluster_id,
        )
        self._answer(asker, answer)

    def _accept(self, asker: Origin, ballot: Ballot, value: View) -> None:
        if ballot < self.votes.promised:
            self._promise(asker, ballot)  # the refusal: an ACCEPTED would look like that of a newer ballot
            return
        if ballot > self.votes.accepted:
            self._save(dataclasses.replace(self.votes, promised=ballot, accepted=ballot, value=value))
        number = self.votes.view.number + 1
        self._answer(asker, Accepted(view=number, round=ballot.round, node=ballot.node))

    def _answer(self, asker: Origin, answer: Promise | Accepted) -> None:
        if self._revision <= self._saved:
            self._send(asker, answer)
        else:
            self._held[asker, type(answer)] = (self._revision, answer)

    # the proposer

    def _count(self, peer: Origin, answer: Promise | Accepted) -> None:
        ballot, attempt = Ballot(answer.round, answer.node), self.attempt
        self._round_heard = max(self._round_heard, ballot.round)
        if attempt is None or ballot != attempt.ballot:
            return
        if isinstance(answer, Accepted):
            if attempt.accepting:
                self._count_accepted(attempt, peer.node)
        elif not attempt.accepting:
            self._count_promise(attempt, peer.node, answer)

    def _count_promise(self, attempt: Attempt, node: int, answer: Promise) -> None:
        found = Ballot(answer.accepted_round, answer.accepted_node)
        if found > attempt.found:
            attempt.found, attempt.value = found, self._parse_next(answer)
        attempt.promised.add(node)
        if node == self._me.node:
            self._ask_all()
        if self._me.node in attempt.promised and self._quorum(attempt.promised):
            attempt.accepting = True
            attempt.value = attempt.value or attempt.proposal
            self._ask_all()
            self._accept(self._me, attempt.ballot, attempt.value)

    def _count_accepted(self, attempt: Attempt, node: int) -> None:
        attempt.accepted.add(node)
        if self._quorum(attempt.accepted):
            assert attempt.value is not None, attempt
            self.learn(attempt.value)

    def _ask_all(self) -> None:
        for node in sorted(self._links):
            self.ask(self._links[node])

    def _send(self, peer: Origin, message: Message) -> None:
        if peer != self._me:
            self._order(Send(peer, pack_message(message)))
        elif isinstance(message, Promise | Accepted):
            self._count(peer, message)

    def _save(self, votes: Votes) -> None:
        self.votes = votes
        self._revision += 1
        self._order(SaveVotes(self._revision, votes))
