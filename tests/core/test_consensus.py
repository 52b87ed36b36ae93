"""Deciding one view, message by message."""

from __future__ import annotations

import random
from collections.abc import Set

import pytest

from p2psgd.core.effects import Effect, SaveVotes, Send
from p2psgd.core.frontier import Origin
from p2psgd.core.paxos import ROUND_MAX, Consensus
from p2psgd.core.view import Ballot, View, Votes
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import Accept, Accepted, Message, Prepare, Promise, ViewNews, parse_message
from p2psgd.wire.reject import PeerError, RejectCode

ME, ADA, BOB = Origin(1, 1), Origin(2, 1), Origin(3, 1)
VIEW = View().replace(dict([ME, ADA, BOB]), set(), set())
WITHOUT_BOB = VIEW.replace({}, {3}, set())
WITHOUT_ADA = VIEW.replace({}, {2}, set())


class Voter:
    """A consensus of node 1 in a view of three, and what it orders."""

    def __init__(self, votes: Votes = Votes(VIEW)) -> None:  # noqa: B008 (frozen)
        self.effects: list[Effect] = []
        self.links = {2: ADA, 3: BOB}
        self.consensus = Consensus(
            ME, votes, links=self.links, quorum=self.is_quorum, order=self.effects.append
        )

    def is_quorum(self, nodes: Set[int]) -> bool:
        return self.consensus.votes.view.quorum(nodes, "stall")

    def sent(self) -> list[tuple[Origin, Message]]:
        """What was ordered to be sent since the last call."""
        sends = [effect for effect in self.effects if isinstance(effect, Send)]
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, Send)]
        cut = PREFIX.size
        return [(it.peer, parse_message(FrameType(it.frame[cut - 1]), it.frame[cut:])) for it in sends]

    def save(self) -> Votes:
        """Save what was ordered last."""
        order = [effect for effect in self.effects if isinstance(effect, SaveVotes)][-1]
        self.consensus.saved(order.revision)
        return order.votes


def prepare(round_: int, node: int) -> Prepare:
    return Prepare(view=2, round=round_, node=node)


def promise(round_: int, node: int, accepted: Ballot = Ballot(), value: View | None = None) -> Promise:  # noqa: B008
    return Promise(
        view=2,
        round=round_,
        node=node,
        accepted_round=accepted.round,
        accepted_node=accepted.node,
        members=b"" if value is None else value.packed_members,
        forbidden=b"" if value is None else value.packed_forbidden,
        cluster_id=0 if value is None else value.cluster_id,
    )


def accept(round_: int, node: int, value: View) -> Accept:
    return Accept(
        view=value.number,
        round=round_,
        node=node,
        members=value.packed_members,
        forbidden=value.packed_forbidden,
        cluster_id=value.cluster_id,
    )


def accepted(round_: int, node: int) -> Accepted:
    return Accepted(view=2, round=round_, node=node)


def test_a_promise_leaves_only_once_it_is_saved() -> None:
    voter = Voter()
    voter.consensus.on_message(ADA, prepare(4, 2))
    assert voter.sent() == []
    assert voter.save().promised == Ballot(4, 2)
    assert voter.sent() == [(ADA, promise(4, 2))]


def test_an_acceptance_leaves_only_once_it_is_saved_and_a_later_promise_tells_of_it() -> None:
    voter = Voter()
    voter.consensus.on_message(ADA, accept(4, 2, WITHOUT_BOB))
    assert voter.sent() == []
    saved = voter.save()
    assert (saved.accepted, saved.value) == (Ballot(4, 2), WITHOUT_BOB)
    assert voter.sent() == [(ADA, accepted(4, 2))]
    voter.consensus.on_message(BOB, prepare(5, 3))
    voter.save()
    assert voter.sent() == [(BOB, promise(5, 3, Ballot(4, 2), WITHOUT_BOB))]


def test_an_answer_to_what_is_on_disk_already_leaves_at_once() -> None:
    voter = Voter(Votes(VIEW, promised=Ballot(4, 2), accepted=Ballot(4, 2), value=WITHOUT_BOB))
    voter.consensus.on_message(ADA, accept(4, 2, WITHOUT_BOB))
    voter.consensus.on_message(ADA, prepare(4, 2))
    assert voter.sent() == [(ADA, accepted(4, 2)), (ADA, promise(4, 2, Ballot(4, 2), WITHOUT_BOB))]
    assert voter.effects == []


def test_one_answer_of_a_kind_waits_for_each_peer() -> None:
    voter = Voter()
    for round_ in range(1, 50):
        voter.consensus.on_message(ADA, prepare(round_, 2))
    voter.save()
    assert voter.sent() == [(ADA, promise(49, 2))]


def test_an_answer_is_dropped_with_the_link_it_waited_for() -> None:
    voter = Voter()
    voter.consensus.on_message(ADA, prepare(4, 2))
    voter.consensus.forget(ADA)
    voter.save()
    assert voter.sent() == []


def test_a_ballot_is_asked_about_only_once_the_own_promise_is_saved() -> None:
    voter = Voter()
    voter.consensus.propose(WITHOUT_BOB)
    assert voter.sent() == []
    voter.save()
    assert voter.sent() == [(ADA, prepare(1, 1)), (BOB, prepare(1, 1))]
    again = Voter(voter.consensus.votes)  # its next life uses another ballot
    again.consensus.propose(WITHOUT_ADA)
    again.save()
    assert again.sent() == [(ADA, prepare(2, 1)), (BOB, prepare(2, 1))]


def test_a_majority_decides_the_wish() -> None:
    voter = Voter()
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.sent()
    voter.consensus.on_message(ADA, promise(1, 1))
    assert voter.sent() == [(ADA, accept(1, 1, WITHOUT_BOB)), (BOB, accept(1, 1, WITHOUT_BOB))]
    voter.consensus.on_message(ADA, accepted(1, 1))
    assert voter.consensus.votes.view == VIEW  # its own acceptance counts once it is saved
    voter.save()
    assert voter.consensus.votes == Votes(WITHOUT_BOB)


def test_the_value_accepted_at_the_highest_ballot_goes_before_the_wish() -> None:
    voter = Voter(Votes(VIEW, Ballot(3, 3), Ballot(3, 3), WITHOUT_BOB))
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.sent()
    voter.consensus.on_message(ADA, promise(4, 1, Ballot(3, 4), WITHOUT_ADA))
    assert voter.sent()[0] == (ADA, accept(4, 1, WITHOUT_ADA))


def test_a_lower_acceptance_told_later_does_not_replace_a_higher_one() -> None:
    voter = Voter(Votes(VIEW, Ballot(3, 3), Ballot(3, 3), WITHOUT_ADA))
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.sent()
    voter.consensus.on_message(ADA, promise(4, 1, Ballot(2, 2), WITHOUT_BOB))
    assert voter.sent()[0] == (ADA, accept(4, 1, WITHOUT_ADA))


def test_answers_to_another_ballot_and_of_strangers_do_not_count() -> None:
    voter = Voter()
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.sent()
    voter.consensus.on_message(ADA, promise(9, 2))
    voter.consensus.on_message(Origin(7, 1), promise(1, 1))
    voter.consensus.on_message(ADA, accepted(1, 1))
    assert voter.sent() == []
    voter.consensus.propose(WITHOUT_BOB)  # goes beyond the round it was refused with
    voter.save()
    assert voter.sent()[0] == (ADA, prepare(10, 1))


def test_what_a_stranger_says_it_accepted_is_not_proposed() -> None:
    voter, stranger = Voter(), Origin(7, 1)
    voter.links[7] = stranger
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.sent()
    its_own = VIEW.replace({7: 1}, {1, 2, 3}, set())
    voter.consensus.on_message(stranger, promise(1, 1, Ballot(2**40, 7), its_own))
    voter.consensus.on_message(ADA, promise(1, 1))
    assert voter.sent()[0] == (ADA, accept(1, 1, WITHOUT_BOB))
    voter.consensus.on_message(stranger, promise(2**30, 7))
    voter.consensus.propose(WITHOUT_BOB)  # with the next round, whatever the stranger said
    voter.save()
    assert voter.sent()[-1][1] == prepare(2, 1)


def test_a_value_that_frees_a_node_forbidden_for_good_is_refused() -> None:
    without_bob = VIEW.replace({}, set(), {3})
    bob_again = View(3, (ME, ADA, BOB), cluster_id=VIEW.cluster_id, since=(1, 1, 3))
    voter = Voter(Votes(without_bob))
    with pytest.raises(PeerError, match="no longer forbids a node that view 2 forbids"):
        voter.consensus.on_message(ADA, accept(4, 2, bob_again))
    assert voter.consensus.votes == Votes(without_bob)


def test_a_refusal_tells_what_was_accepted_and_never_looks_like_an_acceptance() -> None:
    # The proposer of (4, 2) has asked again with (6, 2) when its older messages arrive: whatever answers them
    # names (6, 2), and must be as true as an answer to that.
    voter = Voter(Votes(VIEW, Ballot(6, 2), Ballot(3, 3), WITHOUT_ADA))
    truth = promise(6, 2, Ballot(3, 3), WITHOUT_ADA)
    voter.consensus.on_message(ADA, prepare(4, 2))
    assert voter.sent() == [(ADA, truth)]
    voter.consensus.on_message(ADA, accept(4, 2, WITHOUT_BOB))
    assert voter.sent() == [(ADA, truth)]
    assert voter.consensus.votes.accepted == Ballot(3, 3)


def test_a_peer_that_links_meanwhile_is_asked_too_if_it_has_a_vote() -> None:
    voter = Voter()
    del voter.links[3]
    voter.consensus.propose(WITHOUT_BOB)
    voter.consensus.ask(BOB)  # too early
    voter.save()
    assert [peer for peer, _ in voter.sent()] == [ADA]
    voter.consensus.ask(BOB)
    voter.consensus.ask(Origin(7, 1))
    assert voter.sent() == [(BOB, prepare(1, 1))]
    voter.consensus.on_message(BOB, promise(1, 1))
    voter.sent()
    voter.consensus.ask(ADA)
    assert voter.sent() == [(ADA, accept(1, 1, WITHOUT_BOB))]


def test_a_wish_is_given_up_until_it_is_sent_to_be_accepted() -> None:
    voter = Voter()
    voter.consensus.propose(WITHOUT_BOB)
    voter.consensus.abandon()
    voter.save()
    assert voter.consensus.attempt is None
    voter.consensus.propose(WITHOUT_BOB)
    voter.save()
    voter.consensus.on_message(ADA, promise(2, 1))
    voter.consensus.abandon()
    assert voter.consensus.attempt is not None


def test_who_asks_about_a_view_already_decided_is_told_and_a_later_one_is_let_pass() -> None:
    voter = Voter(Votes(WITHOUT_BOB))
    voter.consensus.on_message(BOB, prepare(1, 3))
    news = WITHOUT_BOB.news()
    assert voter.sent() == [(BOB, news)]
    assert isinstance(news, ViewNews)
    voter.consensus.on_message(BOB, Prepare(view=4, round=1, node=3))
    voter.consensus.on_message(BOB, accepted(1, 1))
    assert voter.effects == []


def test_words_that_cannot_be_meant_are_refused() -> None:
    voter = Voter()
    with pytest.raises(PeerError, match="round"):
        voter.consensus.on_message(ADA, prepare(ROUND_MAX + 1, 2))
    other = View(WITHOUT_BOB.number, WITHOUT_BOB.members, WITHOUT_BOB.forbidden, 77)
    with pytest.raises(PeerError, match="bootstrapped twice") as caught:
        voter.consensus.on_message(ADA, accept(1, 2, other))
    assert caught.value.code is RejectCode.CLUSTER_ID
    assert voter.effects == []


class Race:
    """Nodes of one view that all have wishes of their own and hear no news: a message may arrive late, twice,
    never, or in a later life; a crash leaves the votes that were saved.
    """

    def __init__(self, chance: random.Random) -> None:
        size = chance.choice([2, 3, 4, 5])
        self.chance = chance
        self.two_nodes = chance.choice(["stall", "lower-id"])
        self.links = {node: Origin(node, 1) for node in range(1, size + 2)}  # the last one has no vote
        self.view = View().replace(dict.fromkeys(range(1, size + 1), 1), set(), set())
        self.disks = dict.fromkeys(self.links, Votes(self.view))
        self.effects: dict[int, list[Effect]] = {node: [] for node in self.links}
        self.bag: list[tuple[Origin, int, Prepare | Promise | Accept | Accepted]] = []
        self.incarnations = {node: self.begin(node) for node in self.links}
        self.wishes = 0
        self.decided: set[View] = set()

    def begin(self, node: int) -> Consensus:
        self.effects[node] = []
        return Consensus(
            self.links[node],
            self.disks[node],
            links={peer: origin for peer, origin in self.links.items() if peer != node},
            quorum=lambda nodes: self.view.quorum(nodes, self.two_nodes),
            order=self.effects[node].append,
        )

    def step(self) -> None:
        node = self.chance.choice(list(self.incarnations))
        life, what = self.incarnations[node], self.chance.random()
        if what < 0.75 and self.bag:
            index = self.chance.randrange(len(self.bag))
            source, target, message = self.bag[index]
            if self.chance.random() < 0.9:
                del self.bag[index]
            self.incarnations[target].on_message(source, message)
            self.collect(target)
        elif what < 0.95:
            saves = [effect for effect in self.effects[node] if isinstance(effect, SaveVotes)]
            if saves:
                save = self.chance.choice(saves)
                self.effects[node][:] = [effect for effect in saves if effect.revision > save.revision]
                self.disks[node] = save.votes
                life.saved(save.revision)
        elif what < 0.98 and node in self.view.incarnations and self.wishes < 20:
            self.wishes += 1
            life.propose(self.view.replace({100 + self.wishes: 1}, set(), set()))
        elif what > 0.99:
            self.incarnations[node] = self.begin(node)
        self.collect(node)

    def collect(self, node: int) -> None:
        sends = [effect for effect in self.effects[node] if isinstance(effect, Send)]
        self.effects[node][:] = [effect for effect in self.effects[node] if not isinstance(effect, Send)]
        for effect in sends:
            body, number = effect.frame[PREFIX.size :], effect.frame[PREFIX.size - 1]
            message = parse_message(FrameType(number), body)
            if not isinstance(message, ViewNews):
                assert isinstance(message, Prepare | Promise | Accept | Accepted)
                self.bag.append((self.links[node], effect.peer.node, message))
        view = self.incarnations[node].votes.view
        if view != self.view:
            self.decided.add(view)
            self.incarnations[node] = self.begin(node)  # it crashes before the news are on disk


def test_racing_proposers_decide_one_view() -> None:
    decided = 0
    for seed in range(150):
        race = Race(random.Random(seed))
        for _ in range(600):
            race.step()
        assert len(race.decided) <= 1, f"seed {seed}: {race.decided}"
        decided += len(race.decided)
    assert decided > 100  # it is a race that can be won
