"""Who gives way when all places are taken."""

from __future__ import annotations

from p2psgd.net.crowding import whom_to_displace


def test_the_oldest_of_the_host_with_most_places_gives_way() -> None:
    assert whom_to_displace({1: "b", 2: "a", 3: "a", 4: "b", 5: "a"}, "c") == 2
    assert whom_to_displace({1: "b", 2: "a", 3: "a", 4: "a"}, "b") == 2


def test_nobody_gives_way_to_a_host_that_would_then_have_as_many_places_or_more() -> None:
    assert whom_to_displace({1: "a", 2: "b"}, "c") is None
    assert whom_to_displace({1: "a", 2: "a", 3: "b"}, "b") is None
    assert whom_to_displace({1: "a", 2: "a"}, "a") is None
    assert whom_to_displace({}, "a") is None
