"""Words of modes: each means one, and no other word means any."""

from __future__ import annotations

import pytest

from p2psgd.wire.mode import ASYNC, PAYLOADS, Mode, parse_mode

RINGS = [Mode(payload) for payload in PAYLOADS]


@pytest.mark.parametrize("mode", [ASYNC, *RINGS], ids=lambda mode: mode.word)
def test_a_word_means_its_mode(mode: Mode) -> None:
    assert parse_mode(mode.word) == mode


def test_no_two_modes_have_one_word() -> None:
    assert len({mode.word for mode in [ASYNC, *RINGS]}) == len(RINGS) + 1


@pytest.mark.parametrize(
    ("word", "ring", "dense", "half"),
    [
        ("async", False, False, False),
        ("ring-sparse", True, False, False),
        ("ring-dense", True, True, False),
        ("ring-dense-float16", True, True, True),
    ],
)
def test_a_mode_tells_what_it_does(word: str, ring: bool, dense: bool, half: bool) -> None:
    mode = parse_mode(word)
    assert (mode.ring, mode.dense, mode.half) == (ring, dense, half)


@pytest.mark.parametrize("word", ["", "ring", "ring-", "ring-ternary", "async-sparse", "Async", "dense"])
def test_another_word_is_refused_with_those_there_are(word: str) -> None:
    with pytest.raises(ValueError, match="the modes are async, ring-sparse, "):
        parse_mode(word)
