"""Membership: the view that one node knows, when it proposes the next, and the news of decided views.

Any member admits linked nodes, and the new incarnation of a member that restarted. A READY member also
removes nodes that said GOODBYE or hold the others back. All pending changes of the moment make one proposal
(`PendingChanges`). To keep proposers out of each other's way without chance, the member of rank r waits r
turns first. `Consensus` decides a proposal; the reasons for an eviction come from outside.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from p2psgd.core.effects import Effect, LogEvent, Send
from p2psgd.core.events import Vote
from p2psgd.core.frontier import Origin, name_node
from p2psgd.core.paxos import Consensus
from p2psgd.core.pending_changes import PendingChanges
from p2psgd.core.timing import Timing
from p2psgd.core.view import View, Votes, parse_view
from p2psgd.wire.messages import MEMBERS_MAX, ViewNews, pack_message
from p2psgd.wire.reject import PeerError, RejectCode

RANK_MAX: Final = 8  # a change that only the last of many wants must not wait for all of their turns
VIEWS_SKIPPED_MAX: Final = 2**32  # more than that is a wrong bit, and would be believed for ever
DOUBLINGS_MAX: Final = 3  # of the wait for answers: a slow link may take longer than one turn to answer


@dataclass(slots=True)
class _Report:
    """The last STATUS of a linked incarnation."""

    view: int
    ready: bool
    evict_requests: Set[int]
    hears: bool
    at: float


class Membership:
    """The view one node knows, and its part in deciding the next."""

    def __init__(
        self,
        me: Origin,
        *,
        bootstrap_expect: int,
        two_nodes: str,
        timing: Timing,
        votes: Votes,
        now: float,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """`bootstrap_expect`: nodes in the list, this one included, 1 without a list. `two_nodes`: see
        `View.quorum`. `votes`: what this node has on disk. `names`: of nodes, for what people read.
        """
        self.me = me
        self.view = votes.view
        self.admitted_in = votes.view.member_since(me)
        self.bootstrap_expect = bootstrap_expect
        self._two_nodes = two_nodes
        self._timing = timing
        self._names = {} if names is None else names
        self._began = now
        self._ready = False
        self.stopping = False  # this node said GOODBYE
        self._links: dict[int, Origin] = {}
        self._reports: dict[int, _Report] = {}
        self._requesting: set[int] = set()  # the nodes among them that would evict somebody
        self._follow: dict[int, int] = {}  # what `_following` returns, kept as long as no report is too old,
        self._oldest = -math.inf  # when the oldest of these reports came
        self._here = {me.node: me.incarnation}  # the lives that were heard, and this one
        self._ahead: dict[int, float] = {}  # linked nodes that claim a later view, and since when
        self._claimed: float | None = None  # when somebody first claimed a later view than this one
        self._awaited: list[int] = []  # of those ahead, for whose news a change of the view waits
        self._changes = PendingChanges(timing)
        self._proposal: View | None = None
        self._held_up: tuple[View, Set[int]] | None = None  # a wish, and who would stay: too few to decide
        self._since: float | None = None  # it could be carried out, or was proposed last; None: it cannot be
        self._tries = 0
        self.effects: list[Effect] = []  # what is to be done, in order, until it is taken
        self._consensus = Consensus(
            me, votes, links=self._links, quorum=self._is_quorum, order=self.effects.append
        )

    def expect(self, nodes: int) -> None:
        """Bootstrap the run with this number of nodes, this one included."""
        self.bootstrap_expect = nodes

    def link(self, peer: Origin, now: float) -> None:
        """Add the link to a peer. The peer counts from its first STATUS on."""
        known = self._links.get(peer.node)
        if known is not None and known.incarnation > peer.incarnation:
            return  # the end of a former life's link, opened late
        if known is not None:
            self.unlink(known)
        self._links[peer.node] = peer
        self._changes.leaving.discard(peer.node)
        self._consensus.ask(peer)
        self._consider(now)

    def unlink(self, peer: Origin) -> None:
        """Forget the link to a peer."""
        if self._links.get(peer.node) == peer:
            del self._links[peer.node]
            self._ahead.pop(peer.node, None)
            self._requesting.discard(peer.node)
            if self._reports.pop(peer.node, None) is not None:
                del self._here[peer.node]
                self._follow.pop(peer.node, None)
            self._changes.leaving &= self.view.incarnations.keys() | self._links.keys()
        self._consensus.forget(peer)

    def on_status(
        self,
        peer: Origin,
        *,
        view: int,
        ready: bool,
        evict_requests: Collection[int],
        now: float,
        hears: bool = True,
    ) -> None:
        """Take in a linked peer's STATUS: the view it knows (`check_number` has passed it), the members it
        would evict, and whether it `hears` this node. Its cluster id, if it has one, is this node's.
        """
        if self._links.get(peer.node) != peer:
            return
        if view > self.view.number:
            self._ahead.setdefault(peer.node, now)
            self._claimed = now if self._claimed is None else self._claimed
        else:
            self._ahead.pop(peer.node, None)
        others = frozenset(evict_requests) - {peer.node}  # its own going would not count as anybody's wish
        self._reports[peer.node] = _Report(view, ready, others, hears, now)
        self._here[peer.node] = peer.incarnation
        self._note_report(peer)
        if others:
            self._requesting.add(peer.node)
        else:
            self._requesting.discard(peer.node)
        if view < self.view.number:
            self.effects.append(Send(peer, pack_message(self.view.news())))
        self._consider(now)

    def on_vote(self, peer: Origin, message: Vote, now: float) -> None:
        """Take in a linked peer's vote or news; PeerError if it is impossible, or from a run with another
        cluster id.
        """
        if isinstance(message, ViewNews):
            self._hear_news(peer, parse_view(message), now)
        else:
            self._consensus.on_message(peer, message)
        self._notice(now)
        self._consider(now)

    def check_number(self, number: int) -> None:
        """Raise PeerError if no run can have reached that view while this node was away."""
        if number > self.view.number + VIEWS_SKIPPED_MAX:
            raise PeerError(RejectCode.VIEW, f"it reports view {number}, far beyond {self.view.number}")

    def take_unbacked(self, now: float) -> dict[Origin, str]:
        """Return the linked peers to drop, with a sentence on each: those that have claimed a view for a
        failure timeout and not sent it.

        A peer that does not hear this node does not know that the view is lacking here: it has as long as it
        takes until it closes the link itself.
        """
        unbacked, timing = {}, self._timing
        for node, since in self._ahead.items():
            waited_s, report = now - since, self._reports[node]
            if waited_s > timing.failure_timeout_s + (0 if report.hears else timing.silence_s):
                unbacked[self._links[node]] = (
                    f"{name_node(node, self._names)} claims view {report.view} and has not sent it for "
                    f"{waited_s:.1f} s; the view here is {self.view.number}"
                )
        for origin in unbacked:
            del self._ahead[origin.node]
        return unbacked

    def saved(self, revision: int, now: float) -> None:
        """Go on with what waited for the votes of this revision, which are on disk now."""
        self._consensus.saved(revision)
        self._notice(now)
        self._consider(now)

    @property
    def evict_requests(self) -> Set[int]:
        """The members that this node would evict now."""
        return self._changes.evict_requests.keys()

    def is_leaving(self, node: int) -> bool:
        """Return whether this node has said GOODBYE."""
        return node in self._changes.leaving

    def leaving(self, node: int) -> None:
        """Take a linked node out of the view after its GOODBYE, until it links again."""
        self._changes.leaving.add(node)

    def request_eviction(self, node: int, words: str, now: float) -> None:
        """Ask for the eviction of a member; `words` say why. The request stands until it is withdrawn or a
        view shows the eviction; this node acts on it, and reports it, while READY.
        """
        if node in self.view.incarnations and node != self.me.node:
            self._changes.evict_requests[node] = words
            self._consider(now)

    def withdraw_eviction(self, node: int) -> None:
        """Withdraw the request to evict that node."""
        self._changes.evict_requests.pop(node, None)

    def remove(self, node: int, *, forbid: bool) -> None:
        """Remove a node at a person's request, with `forbid` for good; the request stands until a view shows
        it.
        """
        self._changes.remove(node, forbid=forbid, view=self.view)

    def stop(self, why: str = "") -> None:
        """Leave: this node says GOODBYE, `why` for people, and only votes from now on."""
        self.stopping = True
        self._changes.leave(self.me.node, why)

    def tick(self, now: float, *, ready: bool) -> None:
        """Propose what is due. `ready`: this node is READY."""
        self._ready = ready
        self._changes.tick(now)
        self._consider(now)

    def explain(self) -> str:
        """Return one sentence on the decision under way and what it waits for; "" if there is none."""
        view, proposal = self.view, self._proposal
        if self.me.node in view.forbidden:
            return f"this node was removed for good by view {view.number} and is not admitted again"
        claims = [
            f"{name_node(node, self._names)} to send view {self._reports[node].view}, which it claims"
            for node in self._awaited
            if node in self._reports
        ]
        if claims:
            return f"the view after {view.number} waits for {', '.join(claims)}"
        if view.number == 0 and proposal is None:
            return self._explain_unfounded()
        if proposal is None:
            if self.me in view or self.stopping:
                return "" if self._held_up is None else self._explain_held_up(*self._held_up)
            return f"a majority of view {view.number} is to admit it: {self._name_all(view.incarnations)}"
        what = f"view {proposal.number} with {self._name_all(proposal.incarnations)}"
        if self._since is None:
            away = view.incarnations.keys() - self._links.keys() - {self.me.node}
            return f"{what} waits for a majority of view {view.number}: {self._name_all(away)} not linked"
        attempt = self._consensus.attempt
        if attempt is None:
            return f"{what} is about to be proposed"
        answered = attempt.accepted if attempt.accepting else attempt.promised
        silent = self._voters() - answered
        others = self._name_all(silent - {self.me.node})
        own = "this node's own disk" if self.me.node in silent else ""
        return (
            f"{what} is being decided, without an answer yet from: {', '.join(filter(None, (others, own)))}"
        )

    def _explain_unfounded(self) -> str:
        if self.stopping:
            return "the cluster has not formed, and this node is stopping"
        bootstrap_expect = self._founders()
        here, needed = len(self._here.keys() - self._changes.leaving), bootstrap_expect // 2 + 1
        nodes = f"{here} of {bootstrap_expect} nodes are here"
        if here < needed:
            return f"the cluster has not formed: {nodes}, {needed} are needed"
        return f"the cluster is about to form: {nodes}"

    def _explain_held_up(self, proposal: View, staying: Set[int]) -> str:
        out = (self.view.incarnations.keys() - proposal.incarnations.keys()) | (
            proposal.forbidden - self.view.forbidden
        )
        away, total = proposal.incarnations.keys() - staying, len(proposal.members)
        words = (
            f"{self._name_all(out)} cannot be taken out yet: {total - len(away)} of {total} members would be "
            f"left to decide anything, too few; start {self._name_all(away)} again"
        )
        if not self._is_quorum(staying):
            return words
        enough = 2 * len(away) - total + 1  # of them out, the others are a majority
        some = f"{enough} of them" if enough < len(away) else "it" if enough == 1 else "them"
        return f"{words}, or remove {some} too"

    # what to propose, and when

    def _consider(self, now: float) -> None:
        self._proposal = self._wanted(now)
        if self._proposal is None:
            self._since = None
            self._consensus.abandon()
            return
        if not self._is_quorum(self._links.keys() | {self.me.node}):
            self._since = None
            return
        if self._since is None:
            self._since, self._tries = now, 0
        answers = 2 ** min(self._tries - 1, DOUBLINGS_MAX) if self._tries else 0
        if now - self._since >= (answers + self._rank()) * self._timing.turn_s:
            self._consensus.propose(self._proposal)
            self._since = now
            self._tries += 1

    def _wanted(self, now: float) -> View | None:
        """Return the next view by the pending changes; None if nothing changes, or not by this node
        (VIEWS.md, 18).
        """
        view, here = self.view, self._here
        self._held_up = None
        self._awaited.clear()
        if self.stopping or (not self._requesting and self._changes.fulfilled(view, here)):
            return None
        if self._claimed is not None and now - self._claimed <= self._timing.failure_timeout_s:
            self._awaited += sorted(self._ahead)  # once for each view, whoever claims another how often
        if self._awaited:
            return None
        if view.number == 0:
            return self._wanted_bootstrap(now)
        if self.me.node not in view.incarnations:
            return None
        here = self._following(now)
        evict, requesters = self._to_evict(now)
        next_view = partial(self._changes.next_view, view, here, needed=self._needed(here), now=now)
        proposal = next_view(evict=evict, ready=self._ready)
        if proposal is not None and self._is_quorum(self._links.keys() | {self.me.node}):
            staying = here.keys() - self._changes.leaving
            if requesters and not proposal.quorum(staying - requesters, self._two_nodes):
                # No node gets the majority by evicting others, unless they ask for its eviction too. Of
                # three, one that has a majority with this node needs no other's request.
                evict = self._own_requests() | (self._at_odds(now) if len(view.members) > 3 else set())
                proposal = next_view(evict=evict, ready=self._ready)
            if proposal is not None and not proposal.quorum(staying, self._two_nodes):
                self._held_up = proposal, staying
                # They could never decide anything again: better that all stay that no person wants out,
                proposal = next_view(evict=set(), ready=False)
                if proposal is not None and not proposal.quorum(staying, self._two_nodes):
                    # and also those, until there are others who can decide without them.
                    return next_view(evict=set(), ready=False, removing=False)
        return proposal

    def _needed(self, here: Mapping[int, int]) -> set[int]:
        """Return the READY members that a person wants removed while this node is not READY: it takes the
        state from them first, or what they alone have would go with them.
        """
        if self._ready:
            return set()
        return {
            node
            for node in self._changes.to_remove & here.keys()
            if node != self.me.node and self._reports[node].ready
        }

    def _own_requests(self) -> set[int]:
        """Return the members that this node would evict; none unless it is READY."""
        return set(self.evict_requests) if self._ready else set()

    def _to_evict(self, now: float) -> tuple[set[int], set[int]]:
        """Return the members to evict by the word of this node and of the READY members linked to it, and
        those on whose word alone that is.

        Each of them may be linked to fewer than it takes to decide. Of two that would evict each other, one
        has its way. A member that does not hear this node may well miss others that are there.
        """
        evict, requesters = self._own_requests(), set()
        for node, evict_requests in self._requests_of_others(now).items():
            if node not in evict:
                more = {*evict_requests} - evict - {self.me.node}
                evict |= more
                requesters |= {node} if more & self.view.incarnations.keys() else set()
        return evict, requesters

    def _requests_of_others(self, now: float) -> dict[int, Set[int]]:
        return {
            node: report.evict_requests
            for node in sorted(self._requesting)
            if (report := self._reports[node]).hears
            and report.view == self.view.number
            and now - report.at <= self._timing.failure_timeout_s
            and report.ready
            and self._links[node] in self.view
        }

    def _at_odds(self, now: float) -> set[int]:
        """Return the fewest members whose eviction settles all pairs that would evict each other: the member
        in most pairs first, of several the one with the highest id. So a member that would evict all others
        goes itself.
        """
        going = self._own_requests() | self._changes.leaving | self._changes.to_remove
        requests = {node: out for node, out in self._requests_of_others(now).items() if node not in going}
        odds = {
            one: {other for other in out if one in requests.get(other, ())} for one, out in requests.items()
        }
        out: set[int] = set()
        while any(odds.values()):
            worst = max(odds, key=lambda node: (len(odds[node]), node))
            for other in odds.pop(worst):
                odds[other].discard(worst)
            out.add(worst)
        return out

    def _wanted_bootstrap(self, now: float) -> View | None:
        nodes = {node: life for node, life in self._here.items() if node not in self._changes.leaving}
        all_here = (
            len(nodes) >= self.bootstrap_expect > 1
        )  # without a list there is no telling who else is about
        waited = now - self._began >= self._timing.failure_timeout_s
        if not self._is_quorum(nodes.keys()) or not (all_here or waited):
            return None
        return self.view.replace(dict(sorted(nodes.items())[:MEMBERS_MAX]), set(), set())

    def _founders(self) -> int:
        """Return how many nodes bootstrap the run: more may be here than the list has, and two majorities of
        those have a node in common.
        """
        return max(self.bootstrap_expect, len(self._here))

    def _following(self, now: float) -> dict[int, int]:
        """Return the incarnations that can decide: this one, and those that reported within a failure
        timeout, hear this node and know this view. A node that is dead, paused or deaf may still be linked.
        """
        timeout_s = self._timing.failure_timeout_s
        if now - self._oldest > timeout_s:
            reports = {
                node: report
                for node, report in self._reports.items()
                if report.hears and report.view >= self.view.number and now - report.at <= timeout_s
            }
            self._oldest = min((report.at for report in reports.values()), default=now)
            self._follow = {self.me.node: self.me.incarnation}
            self._follow |= {node: self._links[node].incarnation for node in reports}
        return self._follow

    def _note_report(self, peer: Origin) -> None:
        """Keep up what `_following` returns: a thousand members cannot look at all reports at each one."""
        report = self._reports[peer.node]
        if report.hears and report.view >= self.view.number:
            self._follow[peer.node] = peer.incarnation
        else:
            self._follow.pop(peer.node, None)

    def _rank(self) -> int:
        """Return how many linked nodes that could propose the same go first: READY ones, then lower ids."""
        before = 0
        mine = (not self._ready, self.me.node)
        for node, report in self._reports.items():
            if (
                self.view.number == 0 or node in self.view.incarnations
            ) and node not in self._changes.leaving:
                before += (not report.ready, node) < mine
        return min(before, RANK_MAX)

    def _voters(self) -> Set[int]:
        return self.view.incarnations.keys() if self.view.number else self._links.keys() | {self.me.node}

    def _is_quorum(self, nodes: Set[int]) -> bool:
        if self.view.number == 0:
            return len(nodes) >= self._founders() // 2 + 1
        return self.view.quorum(nodes, self._two_nodes)

    # news of views

    def _hear_news(self, peer: Origin, view: View, now: float) -> None:
        self._consensus.check_successor(view)
        self.check_number(view.number)
        if self._links.get(peer.node) == peer and peer.node in self._reports:
            self._reports[peer.node].view = max(self._reports[peer.node].view, view.number)
            self._note_report(peer)
        if view.number == self.view.number and view != self.view:
            words = f"it has another view {view.number} than this node: one of the two lost its votes"
            raise PeerError(RejectCode.VIEW, words)
        if view.number > self.view.number:
            if peer.node in self._ahead:
                self._ahead[peer.node] = now  # what else it claims has a failure timeout of its own
            self._consensus.learn(view)

    def _notice(self, now: float) -> None:
        """Take over a view that was decided or sent, and send it on."""
        before, view = self.view, self._consensus.votes.view
        if view.number == before.number:
            return
        self.view = view
        self._oldest = -math.inf  # who follows is found anew
        self._claimed = None
        self._ahead = {
            node: since for node, since in self._ahead.items() if self._reports[node].view > view.number
        }
        self._since = None
        self.admitted_in = view.member_since(self.me)
        self.effects.append(LogEvent("view", f"view {view.number}: {self._name_all(view.incarnations)}"))
        report = {
            node: each.evict_requests
            for node, each in sorted(self._reports.items())
            if each.view == before.number
        }
        self.effects += self._changes.take_note(
            before, view, linked=self._links.keys(), told=report, names=self._names, now=now
        )
        news = pack_message(view.news())
        for node, peer in sorted(self._links.items()):
            if node not in self._reports or self._reports[node].view < view.number:
                self.effects.append(Send(peer, news))

    def _name_all(self, nodes: Set[int] | Mapping[int, int]) -> str:
        return ", ".join(name_node(node, self._names) for node in sorted(nodes))
