"""What is known of what others have applied: heard directly or by way of another, and never going back."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest

from p2psgd.core.acks import COHORTS_MAX, NEVER, Acknowledgements
from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import ConfirmedRow, FrontierRow
from tests.core.cluster import by_origin

ME, A, B, C = (Origin(node, 1) for node in (1, 2, 3, 4))


def on(*rows: ConfirmedRow) -> dict[int, ConfirmedRow]:
    return {row.node: row for row in rows}


def row(origin: Origin, sequence: int, *, durable: int = 0, least: int = 0) -> FrontierRow:
    return FrontierRow(*origin, sequence, 7, durable=durable, least=least)


def test_a_member_is_heard_by_its_own_status() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 5, durable=3), row(B, 2)]), 4, {}, 10.0)
    assert (acks.applied(A, ME), acks.durable(A, ME), acks.applied(A, B)) == (5, 3, 2)
    assert (acks.view(A), acks.heard(A)) == (4, 10.0)
    assert (acks.applied(B, ME), acks.view(B), acks.heard(B)) == (0, 0, NEVER)


def test_least_holds_for_all_that_are_confirmed_and_for_nobody_else() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 9, durable=8, least=6)]), 4, on(ConfirmedRow(*B, 3)), 10.0)
    assert acks.applied(A, ME) == 9
    assert (acks.applied(B, ME), acks.durable(B, ME)) == (6, 0)
    assert (acks.view(B), acks.heard(B)) == (3, 10.0)
    assert acks.applied(C, ME) == 0
    assert acks.stable(ME, [ME, A, B]) == 6
    assert acks.stable(ME, [ME, A, B, C]) == 0


def test_least_does_not_hold_for_who_is_only_heard() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 9, durable=8, least=6)]), 4, on(ConfirmedRow(*B, 0)), 10.0)
    assert (acks.applied(B, ME), acks.view(B), acks.heard(B)) == (0, 0, NEVER)


@pytest.mark.parametrize("cohorts", [1, COHORTS_MAX, COHORTS_MAX + 3])
def test_what_another_has_taken_back_does_not_count_when_a_link_closes(cohorts: int) -> None:
    """B was said to have 9, and says itself that it has 2. Then the reporter says so, too."""
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 20, least=9)]), 4, on(ConfirmedRow(*B, 3)), 10.0)
    assert acks.applied(B, ME) == 9
    for number in range(1, cohorts):  # in cohorts of their own, as others are taken in with less
        others = [ConfirmedRow(10 + each, 1, 3) for each in range(number)]
        acks.on_status(
            A, by_origin([row(ME, 20, least=9 - number)]), 4, on(ConfirmedRow(*B, 3), *others), 10.5
        )
    acks.on_status(B, by_origin([row(ME, 2)]), 3, {}, 11.0)
    assert acks.applied(B, ME) == 2
    others = [ConfirmedRow(10 + each, 1, 3) for each in range(cohorts - 1)]
    acks.on_status(A, by_origin([row(ME, 20, least=2)]), 4, on(ConfirmedRow(*B, 3), *others), 12.0)
    acks.link_closed(B)
    assert acks.applied(B, ME) == acks.stable(ME, [B]) == 2
    rows = {each.node: each for each in (ConfirmedRow(*B, 3), *others)}
    news = by_origin([row(ME, 21, least=4)])
    acks.on_status(A, news, 4, rows, 13.0, changed=[], news=news)
    assert acks.applied(B, ME) == 4


def test_what_others_say_of_the_teller_or_of_this_node_is_not_taken() -> None:
    acks = Acknowledgements(ME)
    both = on(ConfirmedRow(*ME, 7), ConfirmedRow(*A, 7))
    acks.on_status(A, by_origin([row(B, 9, least=9)]), 4, both, 10.0)
    assert acks.view(A) == 4
    assert acks.view(ME) == 0
    assert acks.applied(ME, B) == 0


def test_nothing_that_is_known_of_a_life_goes_back() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(B, by_origin([row(ME, 8, durable=5)]), 4, {}, 10.0)
    acks.on_status(
        A, by_origin([row(ME, 9, least=3)]), 4, on(ConfirmedRow(*B, 2)), 11.0
    )  # nobody but B is believed on B
    acks.on_status(B, by_origin([row(ME, 6, durable=1)]), 3, {}, 12.0)
    assert (acks.applied(B, ME), acks.durable(B, ME), acks.view(B)) == (8, 5, 4)
    assert acks.heard(B) == 12.0


def test_what_others_say_of_a_linked_member_is_a_sign_of_life_and_no_more() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(B, by_origin([row(ME, 2)]), 4, {}, 10.0)
    acks.on_status(A, by_origin([row(ME, 9, least=9)]), 4, on(ConfirmedRow(*B, 7)), 11.0)
    assert (acks.applied(B, ME), acks.view(B), acks.reporter(B)) == (2, 4, B)
    assert acks.heard(B) == 11.0
    assert acks.stable(ME, [ME, A, B]) == 2


def test_a_members_own_word_replaces_what_others_said_while_it_was_away() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(
        A, by_origin([row(ME, 9, least=9), row(C, 5, least=5)]), 4, on(ConfirmedRow(*B, 2**62)), 10.0
    )
    assert (acks.applied(B, ME), acks.view(B), acks.reporter(B)) == (9, 2**62, A)
    acks.on_status(B, by_origin([row(ME, 2)]), 4, {}, 11.0)
    assert acks.all_applied(B) == {ME: 2}
    assert (acks.view(B), acks.reporter(B)) == (4, B)


def test_a_new_life_begins_with_nothing() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 8, durable=5)]), 4, {}, 10.0)
    again = Origin(A.node, A.incarnation + 1)
    assert (acks.applied(again, ME), acks.durable(again, ME), acks.view(again)) == (0, 0, 0)
    assert acks.stable(ME, [again]) == 0


def test_lives_that_are_not_kept_are_forgotten() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 8, least=8)]), 4, on(ConfirmedRow(*B, 4)), 10.0)
    acks.keep({B})
    assert (acks.applied(A, ME), acks.heard(A)) == (0, NEVER)
    assert acks.applied(B, ME) == 8


def test_without_other_members_everything_is_stable() -> None:
    assert Acknowledgements(ME).stable(A, [ME]) == 2**64


def test_what_is_said_again_of_the_same_ones_counts_without_news_of_them() -> None:
    acks = Acknowledgements(ME)
    said = on(ConfirmedRow(*B, 4))
    acks.on_status(A, by_origin([row(ME, 9, least=3)]), 4, said, 10.0)
    acks.on_status(A, by_origin([row(ME, 9, least=5)]), 4, said, 11.0, changed=())
    assert (acks.applied(B, ME), acks.heard(B), acks.applied(C, ME)) == (5, 11.0, 0)


def test_a_report_on_a_member_counts_once_its_own_link_is_closed() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(B, by_origin([row(ME, 2)]), 4, {}, 9.0)
    acks.on_status(A, by_origin([row(ME, 9, least=9)]), 5, on(ConfirmedRow(*B, 5)), 10.0)
    assert (acks.applied(B, ME), acks.view(B), acks.reporter(B)) == (2, 4, B)
    acks.link_closed(B)
    assert (acks.applied(B, ME), acks.view(B), acks.reporter(B)) == (9, 5, A)


def test_who_reported_last_is_named_and_the_next_one_when_that_is_gone() -> None:
    acks = Acknowledgements(ME)
    for at, peer in enumerate((A, C)):
        acks.on_status(peer, {}, 4, on(ConfirmedRow(*B, 4)), float(at))
    assert acks.reporter(B) == C
    acks.on_status(A, {}, 4, on(ConfirmedRow(*B, 4)), 2.0, changed=())
    assert acks.reporter(B) == A
    acks.keep({B, C})
    assert acks.reporter(B) == C


def test_a_newcomer_in_the_list_neither_gains_by_the_others_nor_costs_them_anything() -> None:
    acks = Acknowledgements(ME)
    acks.on_status(A, by_origin([row(ME, 9, least=9)]), 4, on(ConfirmedRow(*B, 4)), 10.0)
    both = on(ConfirmedRow(*B, 4), ConfirmedRow(*C, 4))
    acks.on_status(A, by_origin([row(ME, 9, least=2)]), 4, both, 11.0)
    assert (acks.applied(B, ME), acks.applied(C, ME)) == (9, 2)
    acks.on_status(A, by_origin([row(ME, 9, least=4)]), 4, both, 12.0, changed=())
    assert (acks.applied(B, ME), acks.applied(C, ME)) == (9, 4)


def test_however_often_newcomers_lower_what_all_have_nobody_loses_what_it_had() -> None:
    acks, said = Acknowledgements(ME), dict[int, ConfirmedRow]()
    members = [Origin(node, 1) for node in range(10, 10 + 5 * COHORTS_MAX)]
    for at, member in enumerate(members):
        said = {**said, member.node: ConfirmedRow(*member, 4)}
        acks.on_status(A, by_origin([row(ME, 99, least=90 - at)]), 4, said, float(at))
        assert [acks.applied(each, ME) for each in members[: at + 1]] == [*range(90, 89 - at, -1)]
    assert acks.stable(ME, members) == 91 - len(members)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_is_the_most_that_anybody_has_said(seed: int) -> None:
    """Beside an account that goes through every list and keeps a table for each life."""
    chance = Random(seed)
    lives = [Origin(node, 1) for node in range(2, 16)]
    acks, most, views = Acknowledgements(ME), defaultdict[Origin, Counter[Origin]](Counter), Counter[Origin]()
    listed: dict[Origin, dict[int, ConfirmedRow]] = {}
    tables: dict[Origin, dict[Origin, FrontierRow]] = {}
    for at in range(200):
        peer, now = chance.choice(lives[:10]), float(at)
        new = (ME, lives[-1]) if peer not in tables else chance.sample((ME, lives[-1]), chance.randint(0, 2))
        news = by_origin([row(origin, 99, least=chance.randint(0, 99)) for origin in new])
        tables[peer] = tables.get(peer, {}) | news
        if chance.random() < 0.1:
            acks.link_closed(chance.choice(lives[:10]))
        view_max, changed = 3 + at // 100, None
        if peer in listed and chance.random() < 0.8:
            some = chance.sample(lives[10:], chance.randint(0, 2))
            changed = [
                ConfirmedRow(each.node, chance.choice((1, 1, 1, 2)), chance.choice((0, 4, 4, 4)))
                for each in some
            ]
            listed[peer] |= {each.node: each for each in changed}
        else:
            listed[peer] = {
                node: ConfirmedRow(node, life, 4) for node, life in lives[10:] if chance.random() < 0.6
            }
        said = {**listed[peer]}
        about: dict[str, Any] = {"view_max": view_max, "changed": changed, "news": news}
        acks.on_status(peer, tables[peer], 4, said, now, **about)
        for each in said.values():
            if not each.view:
                continue
            life = Origin(each.node, each.incarnation)
            views[life] = max(view_max, views[life])
            for origin, each_row in tables[peer].items():
                most[life][origin] = max(most[life][origin], each_row.least)
        for member in (*lives[10:], *(Origin(node, 2) for node, _ in lives[10:])):
            assert [acks.applied(member, origin) for origin in (ME, lives[-1])] == [
                most[member][origin] for origin in (ME, lives[-1])
            ]
            assert acks.view(member) == views[member]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_believed_to_have_more_than_it_has_whoever_is_linked(seed: int) -> None:
    chance, acks = Random(seed), Acknowledgements(ME)
    peers, members = ([Origin(node, 1) for node in nodes] for nodes in (range(2, 6), range(6, 9)))
    has, said = Counter[Origin](), Counter[Origin]()
    linked, told = set(peers), set[Origin]()

    def report(peer: Origin, now: float) -> None:
        """Let a peer say what it knows of the members: the least of them, for all."""
        least = min(has[each] for each in members)
        rows = on(*(ConfirmedRow(*each, 4) for each in members))
        changed = () if peer in told else None
        told.add(peer)
        acks.on_status(peer, by_origin([row(ME, 99, least=least)]), 4, rows, now, changed=changed)
        for each in set(members) - linked:
            said[each] = max(least, said[each])

    for at in range(300):
        member = chance.choice(members)
        has[member] += chance.randint(0, 3)
        match chance.choice(("report", "report", "own", "open", "close")):
            case "report":
                report(chance.choice(peers), float(at))
            case "own" if member in linked:
                acks.on_status(member, by_origin([row(ME, has[member])]), 4, {}, float(at))
                said[member] = has[member]
            case "open":
                linked.add(member)
            case "close" if member in linked:
                linked.remove(member)
                acks.link_closed(member)
        for each in members:
            assert said[each] <= acks.applied(each, ME) <= has[each]
    for each in members:
        acks.link_closed(each)
    report(peers[0], 1000.0)
    assert all(acks.applied(each, ME) >= min(has[other] for other in members) for each in members)


@pytest.mark.parametrize("how", ["forgotten", "gone", "other words"])
def test_a_member_stays_heard_when_the_report_on_it_goes(how: str) -> None:
    """Else a member that only one hears would seem silent since it was admitted, and be evicted at once."""
    acks = Acknowledgements(ME)
    acks.on_status(B, {}, 4, {}, 1.0)
    acks.on_status(A, {}, 4, on(ConfirmedRow(*B, 3)), 10.0)
    acks.on_status(A, {}, 4, on(ConfirmedRow(*B, 3)), 12.0, changed=())
    if how == "forgotten":
        acks.forget_hearsay()
    elif how == "gone":
        acks.keep({B})
    else:
        acks.on_status(A, {}, 4, on(ConfirmedRow(*C, 3)), 13.0)
    assert acks.heard(B) == 12.0
