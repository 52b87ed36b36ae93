"""In a dense ring, average the gradients of all nodes before an optimizer steps.

The mean of the changes that all nodes' optimizers make is given as well, as in every dense ring. Of an
optimizer in which a change is a linear function of the gradients, both come to the same numbers, and one
round is enough; of all others only the mean of gradients is what one machine would do with one large batch.
Rounds of odd numbers are then those of gradients, so that a node that comes later knows what is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.torch.arrays import Named
from p2psgd.torch.parameters import TrainedParameters
from p2psgd.torch.shards import gradient_of, local_of


def needs_mean_of_gradients(link: Link, optimizers: Sequence[Any]) -> bool:
    """Return True if gradients must be averaged before the step: the mean of changes would differ.

    A class derived from SGD may do anything, so only SGD itself does without.
    """
    return link.mode.dense and any(type(each) is not torch.optim.SGD for each in optimizers)


def refuse_several(link: Link, optimizers: Sequence[Any]) -> None:
    """Raise TrainerError for several optimizers whose gradients must be averaged.

    One round averages them all, before the first optimizer's step, and a script may clip or unscale those of
    the next one after it.
    """
    if len(optimizers) > 1 and needs_mean_of_gradients(link, optimizers):
        raise TrainerError(
            "several optimizers in a dense ring must all be torch.optim.SGD, whose changes are averaged as"
            " they are: take mode async, a sparse ring, or one optimizer"
        )


def has_closure(optimizer: Any, arguments: Sequence[Any], named: Named) -> bool:
    """Return True if `optimizer.step(*arguments, **named)` was given a closure."""
    return any(one is not None and one is not optimizer for one in (*arguments, named.get("closure")))


class GradientMean:
    """Averages the gradients of all nodes in a dense ring; they pass through the host's memory."""

    def __init__(self, link: Link, parameters: TrainedParameters) -> None:
        self._link = link
        self._numbers = np.zeros(parameters.weights, np.float32)
        flat = torch.from_numpy(self._numbers)
        self._parts = [
            (name, parameter, flat[slice(*parameters.ranges[name])].view(local_of(parameter).shape))
            for name, parameter in parameters.named.items()
        ]

    @property
    def due(self) -> bool:
        """True if the open round is one of gradients."""
        return self._link.round % 2 == 1

    def take(self) -> None:
        """Average the gradients before the first optimizer of a step.

        A missing gradient counts as zeros. It stays missing where all nodes have zeros, since decay and
        momentum would move a frozen parameter. Once the daemon asks for the end the gradients stay as they
        are. Raises TrainerError for gradients that cannot be averaged.
        """
        for name, parameter, part in self._parts:
            if parameter.grad is None:
                part.zero_()
            elif parameter.grad.layout != torch.strided:
                raise TrainerError(
                    f"the gradient of {name!r} is sparse, which a dense ring does not average: make its layer"
                    " with sparse=False, or take mode async"
                )
            else:
                part.copy_(gradient_of(parameter))
        try:
            self._link.allreduce(self._numbers, "mean", name="gradients", out=self._numbers)
        except TrainerError:
            if self._link.stopping:
                return
            raise
        for _, parameter, part in self._parts:
            if parameter.grad is None:
                if not part.any():
                    continue
                parameter.grad = torch.empty_like(parameter)
            local_of(parameter.grad).copy_(part)
