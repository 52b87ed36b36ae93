"""Which tensor gets which rule."""

import pytest

from p2psgd.client.step_size import StepRule, Table, assign

NAMES = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"]


def rules(*, tau: float | None = 0.1, tau_of: Table = (), density_of: Table = ()) -> list[StepRule]:
    density = 0.01 if tau is None else None
    return assign(NAMES, tau=tau, density=density, tau_of=tau_of, density_of=density_of)


def test_without_tables_all_tensors_follow_one_rule() -> None:
    assert rules() == [StepRule(tuple(NAMES), tau=0.1)]
    assert rules(tau=None) == [StepRule(tuple(NAMES), density=0.01)]


def test_the_first_pattern_that_matches_counts() -> None:
    assert rules(tau_of=(("layer1.bias", 0.3), ("*.bias", 0.2))) == [
        StepRule(("layer1.weight", "layer2.weight"), tau=0.1),
        StepRule(("layer1.bias",), tau=0.3),
        StepRule(("layer2.bias",), tau=0.2),
    ]


def test_taus_and_densities_may_be_mixed() -> None:
    assert rules(tau=None, tau_of=(("*.bias", 0.2),), density_of=(("layer1.weight", 0.02),)) == [
        StepRule(("layer2.weight",), density=0.01),
        StepRule(("layer1.bias", "layer2.bias"), tau=0.2),
        StepRule(("layer1.weight",), density=0.02),
    ]


def test_a_rule_that_has_no_tensor_left_is_not_there() -> None:
    assert rules(density_of=(("*", 0.02),)) == [StepRule(tuple(NAMES), density=0.02)]


def test_wildcards_are_those_of_a_shell_and_case_counts() -> None:
    assert rules(tau_of=(("layer[2-9].b?as", 0.2),))[1].tensors == ("layer2.bias",)
    with pytest.raises(ValueError, match=r'tau_of "Layer1\.\*" matches no tensor'):
        rules(tau_of=(("Layer1.*", 0.2),))
