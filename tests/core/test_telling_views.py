"""Which views a peer may tell of."""

from __future__ import annotations

import dataclasses

import pytest

from p2psgd.core.frontier import INCARNATION_MAX, Origin
from p2psgd.core.view import NUMBER_MAX, View, parse_view
from p2psgd.wire.reject import PeerError

VIEW = View(5, (Origin(1, 1), Origin(2, INCARNATION_MAX)), frozenset({3}), 7, (2, 5))


def test_a_view_comes_back_as_it_was_told() -> None:
    assert parse_view(VIEW.news()) == VIEW


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"number": NUMBER_MAX + 1}, f"above the limit of {NUMBER_MAX}"),
        (
            {"members": (Origin(1, 1), Origin(2, INCARNATION_MAX + 1))},
            f"an incarnation above {INCARNATION_MAX}",
        ),
        ({"forbidden": frozenset({2})}, "a member that it forbids"),
        ({"since": (2, 6)}, "since a view that is not between 1 and 5"),
        ({"since": (0, 5)}, "since a view that is not between 1 and 5"),
        ({"number": 1, "since": (1, 1)}, "a cluster id that does not follow from its members"),
    ],
)
def test_a_view_that_cannot_be_is_refused(changed: dict[str, object], words: str) -> None:
    view = dataclasses.replace(VIEW, **changed)  # type: ignore[arg-type]  # mypy does not follow the names
    with pytest.raises(PeerError, match=words):
        parse_view(view.news())
