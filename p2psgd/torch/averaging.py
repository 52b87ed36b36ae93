"""In a dense ring, the mean of all nodes' gradients in the place of the own ones, before an optimiser steps.

The mean of the changes that all nodes' optimisers make is given as well, as in every dense ring. Of an
optimiser in which a change is a linear function of the gradients, both come to the same numbers, and one
round is enough; of all others only the mean of gradients is what one machine would do with one large batch.
Rounds of odd numbers are then those of gradients, so that a node that comes later knows what is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from p2psgd.errors import TrainerError
from p2psgd.torch.parameters import TrainedParameters
from p2psgd.trainer.link import Link


def needs_mean_of_gradients(link: Link, optimizer: Any) -> bool:
    """Whether the mean of changes would be another thing; a class derived from SGD may do anything."""
    return link.mode.dense and type(optimizer) is not torch.optim.SGD


class GradientMean:
    """Of one link in a dense ring; the numbers pass through the host's memory."""

    def __init__(self, link: Link, parameters: TrainedParameters) -> None:
        self._link = link
        self._numbers = np.zeros(parameters.weights, np.float32)
        flat = torch.from_numpy(self._numbers)
        self._parts = [
            (name, parameter, flat[slice(*parameters.ranges[name])].view(parameter.shape))
            for name, parameter in parameters.named.items()
        ]

    @property
    def due(self) -> bool:
        """Whether the round that is open is one of gradients."""
        return self._link.round % 2 == 1

    def take(self, optimizer: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Before optimizer.step(*arguments, **named): average the gradients; none counts as zeros, and stays
        none where all nodes have zeros, since decay and momentum would move a frozen parameter.

        TrainerError for what cannot be averaged. Once the daemon asks for the end they stay as they are.
        """
        if any(one is not None and one is not optimizer for one in (*arguments, named.get("closure"))):
            raise TrainerError(
                "in a dense ring the gradients are averaged before the step, and a closure makes others in"
                " it: call step() without one"
            )
        for name, parameter, part in self._parts:
            if parameter.grad is None:
                part.zero_()
            elif parameter.grad.layout != torch.strided:
                raise TrainerError(
                    f"the gradient of {name!r} is sparse, which a dense ring does not average: make its layer"
                    " with sparse=False, or take mode async"
                )
            else:
                part.copy_(parameter.grad)
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
            parameter.grad.copy_(part)
