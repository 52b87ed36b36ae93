"""Who gives way when all places are taken."""

from __future__ import annotations

from p2psgd.net.admission import UNDISTURBED_S, Place, Standing, whom_to_displace

STRANGER, NEIGHBOUR, KNOWN, CERTIFIED = Standing


def places(hosts: str, standing: Standing = STRANGER, *, first: int = 1) -> dict[int, Place]:
    """Of one host by each letter, numbered from `first` on, the oldest first; all taken at 0 s."""
    return {number: Place(host, standing, 0.0) for number, host in enumerate(hosts, start=first)}


def newcomer(host: str, standing: Standing = STRANGER, *, at: float = 0.0) -> Place:
    return Place(host, standing, at)


def test_the_oldest_of_the_host_with_most_places_gives_way() -> None:
    assert whom_to_displace(places("baaba"), newcomer("c")) == 2
    assert whom_to_displace(places("baaa"), newcomer("b")) == 2


def test_nobody_gives_way_to_a_host_that_would_then_have_as_many_places_or_more() -> None:
    assert whom_to_displace(places("aab"), newcomer("b", at=100.0)) is None
    assert whom_to_displace(places("aa"), newcomer("a", at=100.0)) is None
    assert whom_to_displace({}, newcomer("a")) is None


def test_the_oldest_of_all_gives_way_to_a_host_without_a_place_once_it_has_had_time() -> None:
    assert whom_to_displace(places("abc"), newcomer("d", at=UNDISTURBED_S - 0.01)) is None
    assert whom_to_displace(places("abc"), newcomer("d", at=UNDISTURBED_S)) == 1
    assert whom_to_displace(places("abc"), newcomer("b", at=100.0)) is None


def test_strangers_give_way_at_once_to_neighbours_and_these_to_whoever_is_known() -> None:
    waiting = places("ab", KNOWN) | places("cd", NEIGHBOUR, first=3) | places("efg", first=5)
    assert whom_to_displace(waiting, newcomer("z", NEIGHBOUR)) == 5
    assert whom_to_displace(waiting, newcomer("z", KNOWN)) == 5
    assert whom_to_displace(places("ab", KNOWN) | places("cd", NEIGHBOUR, first=3), newcomer("z", KNOWN)) == 3


def test_among_strangers_it_is_the_host_with_most_places_that_gives_way_to_whoever_is_known() -> None:
    assert whom_to_displace(places("abcbcc"), newcomer("z", KNOWN)) == 3


def test_whoever_is_known_or_has_shown_a_certificate_does_not_give_way_to_strangers() -> None:
    for standing in (NEIGHBOUR, KNOWN, CERTIFIED):
        assert whom_to_displace(places("abcd", standing), newcomer("z", at=100.0)) is None
        waiting = places("ab", standing) | places("c", first=3)
        assert whom_to_displace(waiting, newcomer("z", at=100.0)) == 3
    assert whom_to_displace(places("abcd", CERTIFIED), newcomer("z", KNOWN, at=100.0)) is None


def test_a_host_with_more_than_half_of_all_places_gives_way_whatever_its_standing() -> None:
    for standing in (NEIGHBOUR, KNOWN, CERTIFIED):
        assert whom_to_displace(places("abaa", standing), newcomer("z")) == 1
        assert whom_to_displace(places("abab", standing), newcomer("z", at=100.0)) is None
