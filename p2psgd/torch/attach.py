"""How a PyTorch script comes by its link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from p2psgd.errors import TrainerError
from p2psgd.torch.arrays import arrays_of
from p2psgd.torch.checkpoint import Kept
from p2psgd.torch.model_link import ModelLink
from p2psgd.torch.parameters import TrainedParameters
from p2psgd.torch.step_size import Steps

DENSITY = 0.01  # of the weights, sent in a mini-batch: see docs/how-to/torch.md
DENSITY_MAX = 0.25  # as of a recipe: more is sent better as it is, by a dense ring


def attach(
    model: Any,
    optimizer: Any,
    *,
    density: float | None = None,
    tau: float | None = None,
    keep: Sequence[Any] = (),
    **options: Any,
) -> ModelLink:
    """Attach this process to the daemon of its node, to train this model by this optimiser with the others.

    `model`: a torch.nn.Module, its parameters float32, on the CPU or one CUDA device, with the same numbers
    on all nodes (torch.manual_seed). Those that require a gradient are trained, and the optimiser, any
    torch.optim.Optimizer but LBFGS, must have all of them. From now on each optimizer.step() gives what it
    changed, and afterwards the parameters hold what all nodes have made of them.

    `density`, by default 0.01, is the part of all weights that a mini-batch sends, what is too small waits;
    or `tau` says it: a weight moves, and is sent, when changes of learning rate x tau have added up.
    In a dense ring neither has a meaning. `keep`: what has state_dict() and load_state_dict(), such as
    learning-rate schedulers and a GradScaler, to be kept with the node's checkpoints together with the
    optimiser's state and the model's buffers; all of it is as it was when a script is started again.
    `options` are those of p2psgd.attach, such as mode and payload, or for a CUDA device of p2psgd.gpu.attach.

    TrainerError, with the model as it was, for a model or an optimiser that p2psgd cannot train, and as from
    p2psgd.attach.
    """
    parameters = TrainedParameters(model, optimizer)
    if density is not None and tau is not None:
        raise TrainerError("density and tau are two ways to say what is sent: give one of them")
    if density is None and tau is None:
        density = DENSITY
    _check_number("density", density, DENSITY_MAX)
    _check_number("tau", tau, 1e6)
    if not isinstance(keep, Sequence):
        raise TrainerError(f"keep is a list, such as keep=[scheduler]; it was given a {type(keep).__name__}")
    for each in keep:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise TrainerError(
                f"keep holds a {type(each).__name__}, which has no state_dict() and load_state_dict()"
            )
    arrays = arrays_of(parameters.device)
    link = arrays.attach(parameters.initial(), options)
    try:
        steps = Steps(parameters.ranges, density=density, tau=tau, quantum=link.quantum)
        kept = Kept(link, model, optimizer, steps, keep)
        return ModelLink(link, model, optimizer, parameters=parameters, arrays=arrays, steps=steps, kept=kept)
    except BaseException:
        link.close()
        raise


def _check_number(name: str, value: float | None, limit: float) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= limit:
        raise TrainerError(f"{name} {value!r:.100} is refused: give a number above 0, at most {limit:g}")
    assert math.isfinite(value)
