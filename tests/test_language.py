"""The words that STYLE does not want, and docstrings that cannot stand alone, get fewer and never more."""

from __future__ import annotations

import pytest

from tests.language import FRAGMENTS, WORDS, count, grown, in_module, in_page, lowered, read_kept, search


def test_no_unwanted_word_and_no_fragment_is_new() -> None:
    found = list(search())
    assert len({each.file for each in found}) > 1, "or nothing was read"
    faults = grown(count(found), read_kept())
    assert not faults, "\n".join([*faults, "python -m tests.language shows where"])


def test_only_what_is_searched_for_is_kept() -> None:
    assert set(read_kept()) <= {*WORDS, FRAGMENTS}


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("A node waits for one patience.", 1),
        ("Patience, and\nwhoever waits.", 2),
        ("`--patience 5`, and [it](patience.md)", 0),
        ("```\npatience = 5\n```", 0),
        ("The life cycle of a node, a lifetime", 0),
    ],
)
def test_pages_are_searched_but_not_their_code(page: str, number: int) -> None:
    assert len(list(in_page(page, "docs/a.md"))) == number


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ('"""Of one node."""', [FRAGMENTS]),
        ('def f() -> str:\n    """Whom to wish out, and what is due."""', 3),
        ('class A:\n    """Update straggler votes and run due timers."""', []),
        ('say("the lattice of a weight")', 1),
        ('say(f"{name} was told by {node} of it")', 1),
        ('KEY = "patience"', []),
        ("# a comment about patience", []),
    ],
)
def test_docstrings_and_messages_are_searched(source: str, kinds: list[str] | int) -> None:
    found = [each.kind for each in in_module(source, "p2psgd/core/a.py")]
    assert (len(found) if isinstance(kinds, int) else found) == kinds


def test_counts_fall_and_never_rise() -> None:
    kept = {"a": {"core": 3, "net": 1}, "b": {"net": 1}}
    assert lowered({"a": {"core": 2, "net": 5}}, kept) == {"a": {"core": 2, "net": 1}}
    assert grown({"a": {"core": 3}}, kept) == []
    assert len(grown({"a": {"core": 4}, "c": {"wire": 1}}, kept)) == 2
