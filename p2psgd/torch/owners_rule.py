"""The optimizer of a script whose gradients the owners of a run make changes of, by a rule of their own.

PyTorch's optimizer then changes nothing. It gives the learning rate, for schedulers too, and the settings of
the rule where it is the same method. What it does beyond that would have no effect, and is refused.

The outer step of DiLoCo [DiLoCo 2023] is the exception: with the rule nesterov and several local steps the
script's optimizer, whichever it is, makes these, and what they have changed is the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import choose_mode
from p2psgd.torch.arrays import Named
from p2psgd.torch.gradient_mean import has_closure
from p2psgd.torch.shards import gradient_of, local_of
from p2psgd.wire.mode import Mode
from p2psgd.wire.rule import Rule, parse_rule

KINDS: Final[Mapping[str, Sequence[Any]]] = {  # by rule; and SGD with each
    "adagrad": (torch.optim.Adagrad,),
    "adamw": (torch.optim.AdamW, torch.optim.Adam),
    "nesterov": (),
}
OFF: Final = ("momentum", "weight_decay", "lr_decay", "amsgrad", "maximize")  # unless the rule has it
OUTER_RATE: Final = 0.7  # of the outer step [DiLoCo 2023, section 3]
_OTHERWISE: Final = {
    "nesterov": ", or give local_steps above 1, with which owners step by what it has changed (DiLoCo)"
}
RATE_MIN: Final = 1e-30  # for a schedule that begins at 0: owners take the gradient in, and no weight moves


def mode_of(options: Named) -> Mode:
    """Return the mode of a run with these `options` of attach."""
    given = {name: options.get(name) for name in ("payload", "rule")}
    return choose_mode(options.get("mode", "async"), rounds=options.get("rounds", False), **given)


def choose_outer_rate(mode: Mode, local_steps: int | None, outer_rate: float | None) -> float | None:
    """Return the rate at which owners step by what `local_steps` steps of a node have changed; None if their
    step is another one.
    """
    if mode.rule.name == "nesterov" and (local_steps or 1) > 1:
        return OUTER_RATE if outer_rate is None else float(outer_rate)
    if outer_rate is not None:
        raise TrainerError(
            f"outer_rate={outer_rate!r:.100} is of the step that owners make of several local steps: give"
            " rule='nesterov' and local_steps above 1 as well, or leave it out"
        )
    return None


def choose_rule(optimizers: Sequence[Any], mode: Mode, rule: object) -> OwnersRule | None:
    """Return the rule of a run of this mode, given to attach as `rule`, and its optimizer; None if nodes send
    changes. Raises TrainerError if the optimizer contradicts it.
    """
    if not mode.rule.gradients:
        return None
    if len(optimizers) > 1:
        raise TrainerError(
            f"owners follow one rule, {mode.rule.name}, for all weights: give attach one optimizer, and not"
            f" {len(optimizers)}"
        )
    return OwnersRule(mode.rule, optimizers[0], by_name="(" not in str(rule))


class OwnersRule:
    """The rule that owners follow, as one script's optimizer has it.

    `rule`: as it was given; `by_name`: without settings, which are the optimizer's then.
    """

    def __init__(self, rule: Rule, optimizer: Any, *, by_name: bool) -> None:
        self._optimizer, self._name = optimizer, rule.name
        kinds = (torch.optim.SGD, *KINDS[rule.name])
        if type(optimizer) not in kinds:
            known = " or ".join(f"torch.optim.{kind.__name__}" for kind in kinds)
            raise TrainerError(
                f"owners follow the rule {rule.name}, and {type(optimizer).__name__} is another method: take"
                f" {known}{_OTHERWISE.get(rule.name, '; SGD gives the learning rate alone')}"
            )
        its = self._rule_of_groups()
        if its is not None and not by_name and its != rule:
            raise TrainerError(
                f"the rule is {rule.word}, and the {type(optimizer).__name__} is {its.word}: give the rule by"
                " its name alone, or both with the same settings"
            )
        self.rule = its or rule
        self._begun = its
        assert self.rate

    @property
    def word(self) -> str:
        """The rule with all settings, as an option of `p2psgd.attach`."""
        return self.rule.word

    @property
    def rate(self) -> float:
        """The learning rate now. Raises TrainerError if there are several, or other settings have changed."""
        if self._rule_of_groups() != self._begun:
            raise TrainerError(
                f"settings of the optimizer have changed, and owners follow {self.word} to the end: leave"
                " them as they are, as schedulers do with cycle_momentum=False"
            )
        rates = sorted({float(group["lr"]) for group in self._optimizer.param_groups})
        if len(rates) > 1:
            raise TrainerError(
                "owners follow one learning rate for all weights, and the optimizer's groups have"
                f" {' and '.join(f'{rate:g}' for rate in rates)}: give all groups the same"
            )
        return max(rates[0], RATE_MIN)

    def _rule_of_groups(self) -> Rule | None:
        """Return the rule that the optimizer's groups have settings of; None for SGD, which has none."""
        found = [self._settings(group) for group in self._optimizer.param_groups]
        if not all(each == found[0] for each in found):
            raise TrainerError(
                f"owners follow {self._name} with the same settings for all weights, and the optimizer's"
                " groups differ: give all groups the same"
            )
        if not found[0]:
            return None
        words = ", ".join(f"{name}={value!r}" for name, value in found[0].items())
        try:
            return parse_rule(f"{self._name}({words})")
        except ValueError as error:
            raise TrainerError(f"the optimizer has settings that owners do not take: {error}") from None

    def _settings(self, group: Named) -> dict[str, float]:
        for name in self._without_effect(group):
            raise TrainerError(
                f"{name}={group[name]!r:.60} of the {type(self._optimizer).__name__} would have no effect:"
                f" owners make the changes, by their rule {self._name}, which has no such setting; leave it"
                " out"
            )
        if type(self._optimizer) is torch.optim.SGD:
            momentum = float(group["momentum"])
            if momentum and (group["dampening"] or not group["nesterov"]):
                raise TrainerError(
                    f"momentum={momentum!r} of the SGD is another method than the rule {self._name}: make it"
                    " with nesterov=True, or leave the momentum out and give that of the rule"
                )
            return {"momentum": momentum} if momentum else {}
        epsilon = float(group["eps"])
        if self._name == "adagrad":
            return {"epsilon": epsilon, "initial": float(group["initial_accumulator_value"])}
        beta1, beta2 = map(float, group["betas"])
        decay = float(group["weight_decay"])
        return {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": decay}

    def _without_effect(self, group: Named) -> Iterator[str]:
        decays = type(self._optimizer) is torch.optim.AdamW or group.get("decoupled_weight_decay")
        has = ["momentum"] * (self._name == "nesterov") + ["weight_decay"] * bool(decays)
        for name in OFF:
            if group.get(name) and name not in has:
                yield name


class GradientSum:
    """Adds up the gradients of steps that are sent together, in one flat tensor (P,) float32.

    While the optimizer steps its parameters have no gradients, so that it leaves them as they are.
    """

    def __init__(self, rule: OwnersRule, parameters: Any, flat: Any) -> None:
        """`parameters`: the TrainedParameters whose gradients they are."""
        self.rate = RATE_MIN  # of the last step
        self._rule, self._flat = rule, flat
        self._parts = [
            (parameter, flat[slice(*parameters.ranges[name])].view(local_of(parameter).shape))
            for name, parameter in parameters.named.items()
        ]
        self._held: list[Any] | None = None
        self._empty = False
        self.clear()

    def clear(self) -> None:
        """Begin a new sum."""
        if not self._empty:
            self._flat.zero_()
        self._empty = True

    def check_step(self, optimizer: Any, arguments: Sequence[Any], named: Named) -> None:
        """Raise TrainerError if the gradients are not there before the step, or have another scale."""
        if has_closure(optimizer, arguments, named):
            raise TrainerError(
                "owners make the changes of gradients that are there before the step, and a closure makes"
                " others in it: call step() without one"
            )
        if getattr(optimizer, "found_inf", None) is not None:
            raise TrainerError(
                "owners are given gradients as they are, and a GradScaler leaves their scale to a fused"
                " optimizer: make it with fused=False"
            )

    def take(self) -> None:
        """Add the gradients, and take them from the parameters until `give_back`."""
        self.rate, self._empty = self._rule.rate, False
        for parameter, part in self._parts:
            if (gradient := gradient_of(parameter)) is not None:
                part.add_(gradient)
        self._held = [parameter.grad for parameter, _ in self._parts]
        for parameter, _ in self._parts:
            parameter.grad = None

    def give_back(self) -> None:
        """Give the parameters their gradients again, if they lack them."""
        if self._held is not None:
            for (parameter, _), gradient in zip(self._parts, self._held, strict=True):
                parameter.grad = gradient
        self._held = None
