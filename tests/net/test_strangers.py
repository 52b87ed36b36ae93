"""Nodes of other runs are remembered, but not without end."""

from __future__ import annotations

from p2psgd.net.handshake import STRANGERS_MAX, ForeignNodes
from tests.net.test_greeting import hello


def test_each_is_told_of_once_and_forgotten_when_it_is_linked() -> None:
    told: list[tuple[int, str]] = []
    strangers = ForeignNodes(lambda node, words: told.append((node, words)))
    strangers.refused(hello(node=7, name="seven"), "it is in a ring", 1.0)
    strangers.refused(hello(node=7, name="seven"), "it is in another ring", 2.0)
    assert told == [(7, "it is in a ring")]
    assert [(each.name, each.at, each.words) for each in strangers] == [
        ("seven", 2.0, "it is in another ring")
    ]
    strangers.linked(7)
    assert not list(strangers)


def test_so_many_are_remembered_and_no_more() -> None:
    told: list[int] = []
    strangers = ForeignNodes(lambda node, _: told.append(node))
    for node in range(1, 3 * STRANGERS_MAX):
        strangers.refused(hello(node=node), "another run", 1.0)
    assert told == [each.node for each in strangers] == [*range(1, STRANGERS_MAX + 1)]
