"""Attach a PyTorch model and its optimizers to the daemon of this node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
from torch.nn import Module

from p2psgd.base.errors import TrainerError
from p2psgd.client.alone import wants_alone
from p2psgd.client.first_weights import check_first, common_start, take_first_weights
from p2psgd.client.link import check_steps
from p2psgd.ipc.listener import part_control
from p2psgd.ipc.part import label_of
from p2psgd.torch.arrays import arrays_of
from p2psgd.torch.checkpoint import Kept, check_kept
from p2psgd.torch.gradient_mean import refuse_several
from p2psgd.torch.group import Group, find_group
from p2psgd.torch.model_link import ModelLink, count_others, knows_rank
from p2psgd.torch.owners_rule import RATE_MIN, choose_outer_rate, choose_rule, mode_of
from p2psgd.torch.parameters import TrainedParameters
from p2psgd.torch.send_policy import SendPolicy, describe_part
from p2psgd.torch.step_size import Steps
from p2psgd.wire.mode import Mode
from p2psgd.wire.rule import RATE_MAX

DENSITY = 0.01  # of the weights, sent in a mini-batch: see docs/how-to/torch.md
INITIAL = ("same", "first")
QUANTUM = 2.0**-20  # as of p2psgd.attach
OF_THE_RUN = ("label", "mode", "payload", "rule", "rounds", "quantum", "two_nodes")  # of p2psgd.attach
DENSITY_MAX = 0.25  # as of a recipe: more is sent better as it is, by a dense ring


def attach(
    model: Any,
    optimizer: Any,
    *,
    density: float | None = None,
    tau: float | None = None,
    keep: Sequence[Any] = (),
    own_residual: bool | None = None,
    run_horizon: bool | None = None,
    local_steps: int | None = None,
    outer_rate: float | None = None,
    initial: str = "same",
    part: tuple[int, int] | None = None,
    **options: Any,
) -> ModelLink:
    """Attach a model and its optimizer to the daemon of this node.

    From now on each `optimizer.step()` is one step of this node. p2psgd sends what the step has changed, or
    keeps it in the residual; then the parameters follow the updates of all nodes. The model must have the
    same weights on all nodes (call `torch.manual_seed` before it is made, or load the same file), or all
    nodes say `initial="first"`.

    With `mode="owners"` and a `rule` but "sum" nodes send gradients, and owners make the changes. The
    optimizer then gives the learning rate, and where it is the same method the settings of the rule; it
    changes nothing itself. With the rule "nesterov" and several `local_steps` it is DiLoCo: the optimizer,
    any, makes these steps, and owners make the outer step.

    Args:
        model: The model, a `torch.nn.Module` on the CPU or one CUDA device. Parameters that require a
            gradient now are trained; they are float32, or bfloat16 or float16 with a float32 master each.
        optimizer: Any `torch.optim.Optimizer` except LBFGS; or a list of several, such as Muon for matrices
            and AdamW for the rest, which each step of the script calls one after the other. Together they
            must have all trained parameters.
        density: The fraction of all weights that one step sends, above 0 and at most 0.25. Default: 0.01, if
            `tau` is not given. Without effect in a dense ring.
        tau: The threshold in units of the learning rate, instead of `density`: a weight is sent, and moves,
            when changes of learning rate x tau have added up. With a rule of owners it is in units of the
            gradient. Without effect in a dense ring.
        keep: Objects with `state_dict()` and `load_state_dict()`, such as schedulers and a `GradScaler`. They
            are kept with the node's checkpoints, as are the optimizer's state and the model's buffers, and
            restored when the script is started again. Default: none.
        own_residual: True to train at the replica plus this node's own residual, so that a change that is too
            small to send counts for this node at once. False to train at the replica, as in [Strom 2015].
            Default: True, and False with a rule of owners, where the residual is of gradients. Without effect
            in a ring.
        run_horizon: True to let the optimizer's betas and momentum count steps of the whole run: each is
            raised to the power of the steps that the run makes for each one of this node, about the number of
            nodes. False to leave them as they are. Default: True. Without effect in a ring.
        local_steps: The number of `optimizer.step()` calls that are sent together, 1 to 1,000. In a ring a
            round takes this number of steps, and its result is the mean of all nodes' changes. Default: 1 in
            a ring, and in asynchronous mode as many as are made while the links are busy with the last send.
        outer_rate: The learning rate of the outer step, above 0 and at most 100, with the rule "nesterov" and
            `local_steps` above 1. Default: 0.7 there.
        initial: Where the first weights of the run come from. "same": every node brings the same.
            "first": they are those of the node with rank 0, and the others wait for them, up to an hour;
            frozen parameters and buffers stay each node's own. All nodes say the same. Default: "same".
        part: The part of the model that this rank of the process group holds, and of how many, (k, K), for a
            stage of a pipeline, whose parameters are its own. Where they are DTensors, of `fully_shard` or
            tensor parallelism, it is known. Default: that, or the whole model.
        **options: Options of `p2psgd.attach`, such as `mode`, `payload` and `quantum`, or of
            `p2psgd.gpu.attach` for a model on a CUDA device.

    Returns:
        The model's link. Close it, or use it in a with block.

    Raises:
        TrainerError: p2psgd cannot train this model or optimizer, which are unchanged then; or as from
            `p2psgd.attach`.

    Example:
        ```python
        link = p2psgd.torch.attach(model, optimizer)
        loader = DataLoader(dataset, batch_size=32, sampler=link.sampler(dataset))
        for epoch in link.epochs(20, loader):  # in place of range(20)
            ...  # the training loop of the script
        ```
    """
    optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    group = find_group(model, part) if isinstance(model, Module) else None
    with ExitStack() as undo:
        with _together(group):
            parameters = TrainedParameters(model, optimizers, group)
            if density is None and tau is None:
                density = DENSITY
            mode = mode_of(options)
            _check_options(
                mode,
                density=density,
                tau=tau,
                local_steps=local_steps,
                outer_rate=outer_rate,
                keep=keep,
                initial=initial,
            )
            outer_rate = choose_outer_rate(mode, local_steps, outer_rate)
            rule = choose_rule(optimizers, mode, options.get("rule")) if outer_rate is None else None
            if rule is not None:
                options["rule"] = rule.word
            _refuse_for_gradients(mode, own_residual=own_residual, run_horizon=run_horizon)
            if local_steps is None and options.get("shards") is not None:
                local_steps = 1
            if local_steps != 1 and options.get("shards") is not None:
                raise TrainerError(
                    "local_steps and shards do not go together: the other nodes learn with each send which"
                    " samples are taken, so leave one of them out"
                )
        if group is not None:
            own = {
                "density": density,
                "tau": tau,
                "own_residual": own_residual,
                "run_horizon": run_horizon,
                "local_steps": local_steps,
                "outer_rate": outer_rate,
                "initial": initial,
            }
            group.check_same(own | {name: options.get(name) for name in OF_THE_RUN})
        with _together(group):
            if group is not None:
                _name_part(group, options)
            arrays = arrays_of(parameters.device)
            weights = parameters.initial()
            shared = initial == "first"
            brought = common_start(weights, options.get("quantum", QUANTUM)) if shared else weights
            link = arrays.attach(brought, options)
            undo.callback(link.close)
        with _together(group):
            if shared:
                parameters.say_frozen()
                take_first_weights(link, weights)
        if group is not None:
            zeros = arrays.xp.zeros(parameters.weights, np.float32)
            rate = RATE_MIN if link.mode.rule.gradients else None
            group.come_together(link, zeros, rate, count_others)
        if link.mode.rounds and local_steps is None:
            local_steps = 1
        sums_changes = link.mode.rounds and not link.mode.dense and not link.mode.rule.gradients
        if local_steps != 1 and sums_changes and not knows_rank(link):
            raise TrainerError(
                "local_steps in a sparse ring needs the number of nodes, which this node does not know: start"
                " it with p2psgd node --rank i/n, or name all nodes in its --peers"
            )
        own_residual = own_residual is not False and not link.mode.rounds and rule is None
        steps = Steps(
            parameters.ranges,
            parameters.owners,
            density=density,
            tau=tau,
            quantum=link.quantum,
            shrinks=not own_residual,
            xp=arrays.xp,
        )
        refuse_several(link, optimizers)
        kept = Kept(link, model, optimizers, steps, group)
        made = ModelLink(
            link,
            model,
            optimizers,
            parameters=parameters,
            arrays=arrays,
            steps=steps,
            kept=kept,
            keep=keep,
            own_residual=own_residual,
            run_horizon=run_horizon is not False and rule is None,
            rule=rule,
            outer_rate=outer_rate,
            group=group,
            policy=SendPolicy(
                link,
                local_steps=local_steps,
                sent_part=describe_part(parameters.weights, density=density, tau=tau),
            ),
        )
        undo.pop_all()
        return made


def _together(group: Group | None) -> AbstractContextManager[None]:
    """Raise what one rank of a group is refused for inside on all of them."""
    return nullcontext() if group is None else group.together()


def _check_options(
    mode: Mode,
    *,
    density: float | None,
    tau: float | None,
    local_steps: int | None,
    outer_rate: float | None,
    keep: Sequence[Any],
    initial: str,
) -> None:
    """Check these options of `attach`, each by itself; TrainerError if one is refused."""
    if density is not None and tau is not None:
        raise TrainerError("density and tau are two ways to say what is sent: give one of them")
    _check_number("density", density, DENSITY_MAX)
    _check_number("tau", tau, 1e6)
    _check_number("outer_rate", outer_rate, RATE_MAX)
    if local_steps is not None:
        check_steps("local_steps", local_steps)
    if not isinstance(keep, Sequence):
        raise TrainerError(f"keep is a list, such as keep=[scheduler]; it was given a {type(keep).__name__}")
    check_kept(keep)
    if initial not in INITIAL:
        raise TrainerError(f"initial {initial!r:.100} is refused: give 'same' or 'first'")
    if initial == "first":
        check_first(mode)


def _name_part(group: Group, options: dict[str, Any]) -> None:
    """Let options of `p2psgd.attach` be those of the run of this rank's part."""
    if options.get("shards") is not None:
        raise TrainerError(
            "shards are dealt out to one trainer of a node, and this model is cut over several ranks: leave"
            " shards out, and have each read its share by link.sampler(dataset)"
        )
    options["label"] = label_of(options.get("label", ""), group.part, group.cut)
    if options.get("full_precision") is not None:
        options["full_precision"] = group.rename(options["full_precision"])
    if not wants_alone(options.get("alone"), options.get("control")):
        options["control"] = part_control(options.get("control"), group.part)


def _refuse_for_gradients(mode: Mode, **given: bool | None) -> None:
    for name, value in given.items():
        if value and mode.rule.gradients:
            raise TrainerError(
                f"{name}=True means nothing where owners make the changes: nodes send gradients there, so"
                " leave it out"
            )


def _check_number(name: str, value: float | None, limit: float) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= limit:
        raise TrainerError(f"{name} {value!r:.100} is refused: give a number above 0, at most {limit:g}")
    assert math.isfinite(value)
