"""Words of modes: each means one, and no other word means any."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from p2psgd.wire.mode import (
    ASYNC,
    CLOSURE,
    OWNERS,
    OWNERS_ROUNDS,
    OWNERS_TERNARY,
    PAYLOADS,
    WORD_MAX,
    Mode,
    parse_mode,
)
from p2psgd.wire.rule import parse_rule

ALL = [ASYNC, OWNERS, OWNERS_ROUNDS, OWNERS_TERNARY, *map(Mode, PAYLOADS), CLOSURE]


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.word)
def test_a_word_means_its_mode(mode: Mode) -> None:
    assert parse_mode(mode.word) == mode
    assert str(mode) == mode.word


def test_no_two_modes_have_one_word() -> None:
    assert len({mode.word for mode in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("word", "owners", "ring", "dense", "half"),
    [
        ("async", False, False, False, False),
        ("closure", False, False, False, False),
        ("owners", True, False, False, False),
        ("owners-rounds", True, False, False, False),
        ("owners-rounds-ternary", True, False, False, False),
        (
            "owners-rounds-ternary-adamw(beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.0)",
            True,
            False,
            False,
            False,
        ),
        ("owners-adagrad(epsilon=1e-10, initial=0.0)", True, False, False, False),
        ("owners-rounds-adagrad(epsilon=1e-10, initial=0.0)", True, False, False, False),
        ("owners-rounds-nesterov(momentum=0.9)", True, False, False, False),
        ("ring-sparse", False, True, False, False),
        ("ring-dense", False, True, True, False),
        ("ring-dense-float16", False, True, True, True),
    ],
)
def test_a_mode_tells_what_it_does(word: str, owners: bool, ring: bool, dense: bool, half: bool) -> None:
    mode = parse_mode(word)
    assert (mode.owners, mode.ring, mode.dense, mode.half) == (owners, ring, dense, half)
    assert mode.rounds == (ring or "rounds" in word)
    assert mode.ternary == ("ternary" in word)
    assert mode.rule.gradients == ("(" in word)
    assert mode.closure == (word == "closure")
    assert mode.word == word


ODD = 0.12345678901234567e-5  # with as many digits as a number has


@pytest.mark.parametrize(
    "rule",
    [
        "sum",
        "adagrad(initial=0.5)",
        "adamw(beta2 = 0.95,weight_decay=1e-1)",
        f"adamw(beta1={ODD!r}, beta2={ODD!r}, epsilon={ODD!r}, weight_decay={ODD!r})",
    ],
)
@pytest.mark.parametrize("owners", [OWNERS, OWNERS_ROUNDS], ids=lambda mode: mode.word)
def test_a_rule_with_its_settings_is_a_part_of_the_word(rule: str, owners: Mode) -> None:
    mode = replace(owners, rule=parse_rule(rule))
    assert parse_mode(mode.word) == mode
    assert str(mode) == mode.word
    assert len(mode.word) <= WORD_MAX, "what a greeting, a checkpoint and a file of own updates take"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", "rule '' is not known: the rules are sum, adagrad, adamw, nesterov"),
        ("rmsprop", "rule 'rmsprop' is not known"),
        ("adagrad(", "is not known"),
        ("adagrad(beta1=0.5)", "rule adagrad: 'beta1=0.5' is refused: give epsilon, initial, each once"),
        ("adagrad(epsilon=1, epsilon=1)", "'epsilon=1' is refused"),
        ("sum(a=1)", "rule sum: 'a=1' is refused: give none, each once"),
        ("adagrad(epsilon=-1)", "epsilon=-1 is refused: it must be a number from 1e-37 to 1"),
        ("adamw(beta1=x)", "beta1=x is refused: it must be a number from 0 to below 1"),
        ("adamw(beta1=1)", "beta1=1 is refused: it must be a number from 0 to below 1"),
        ("adamw(epsilon=0)", "epsilon=0 is refused: it must be a number from 1e-37 to 1"),
        ("adagrad(epsilon=1e-300)", "epsilon=1e-300 is refused: it must be a number from 1e-37 to 1"),
        ("adamw(weight_decay=1e400)", "weight_decay=1e400 is refused"),
        ("adamw(beta1=0.5.5)", "beta1=0.5.5 is refused"),
        ("nesterov(momentum=1)", "momentum=1 is refused: it must be a number from 0 to below 1"),
        ("nesterov(momentum=-0.5)", "rule nesterov: momentum=-0.5 is refused: it must be a number from 0"),
    ],
)
def test_a_rule_that_is_none_is_refused_with_what_would_do(rule: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_rule(rule)


@pytest.mark.parametrize("word", ["owners-nesterov", "owners-nesterov(momentum=0.9)"])
def test_a_rule_for_rounds_is_refused_without_them(word: str) -> None:
    words = (
        "rule nesterov is for rounds, in which one step is made of what all nodes contribute: train in"
        " rounds (rounds=True, --rounds), or take the rule sum, adagrad or adamw"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_mode(word)
    assert parse_mode(word.replace("owners", "owners-rounds")).rule == parse_rule("nesterov")


@pytest.mark.parametrize(
    "word", ["", "ring", "ring-", "ring-ternary", "async-sparse", "owners-", "Async", "dense", "ternary"]
)
def test_another_word_is_refused_with_those_there_are(word: str) -> None:
    match = "the modes are async, owners, owners-rounds, owners-rounds-ternary, ring-sparse, "
    with pytest.raises(ValueError, match=match):
        parse_mode(word)


@pytest.mark.parametrize(
    "rule", ["sum", f"adamw(beta1={ODD!r}, beta2={ODD!r}, epsilon={ODD!r}, weight_decay={ODD!r})"]
)
def test_it_may_follow_ternary_contributions(rule: str) -> None:
    mode = replace(OWNERS_TERNARY, rule=parse_rule(rule))
    assert parse_mode(mode.word) == mode
    assert str(mode) == mode.word
    assert len(mode.word) <= WORD_MAX


def test_adagrad_is_refused_where_a_tensor_comes_in_several_contributions() -> None:
    with pytest.raises(ValueError, match=r"^rule adagrad does not go with payload ternary: .* take adamw"):
        parse_mode("owners-rounds-ternary-adagrad")


@pytest.mark.parametrize("word", ["owners-ternary", "owners-ternary-rounds", "owners-rounds-ternary-"])
def test_ternary_contributions_are_for_rounds_of_owners(word: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        parse_mode(word)
