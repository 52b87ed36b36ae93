"""Words of modes: each means one, and no other word means any."""

from __future__ import annotations

import pytest

from p2psgd.wire.mode import ASYNC, OWNERS, PAYLOADS, Mode, parse_mode

ALL = [ASYNC, OWNERS, *map(Mode, PAYLOADS)]


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.word)
def test_a_word_means_its_mode(mode: Mode) -> None:
    assert parse_mode(mode.word) == mode


def test_no_two_modes_have_one_word() -> None:
    assert len({mode.word for mode in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("word", "owners", "ring", "dense", "half"),
    [
        ("async", False, False, False, False),
        ("owners", True, False, False, False),
        ("ring-sparse", False, True, False, False),
        ("ring-dense", False, True, True, False),
        ("ring-dense-float16", False, True, True, True),
    ],
)
def test_a_mode_tells_what_it_does(word: str, owners: bool, ring: bool, dense: bool, half: bool) -> None:
    mode = parse_mode(word)
    assert (mode.owners, mode.ring, mode.dense, mode.half) == (owners, ring, dense, half)


@pytest.mark.parametrize(
    "word", ["", "ring", "ring-", "ring-ternary", "async-sparse", "owners-", "Async", "dense"]
)
def test_another_word_is_refused_with_those_there_are(word: str) -> None:
    with pytest.raises(ValueError, match="the modes are async, owners, ring-sparse, "):
        parse_mode(word)
