"""Attach a training script to its node's daemon: propose a run and wait until the node may train."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from numpy.typing import ArrayLike
from pydantic import ValidationError

from p2psgd.base.environment import check_environment
from p2psgd.base.errors import DaemonLost, TrainerError, UsageError
from p2psgd.base.formatting import say
from p2psgd.client.alone import OwnDaemon, wants_alone
from p2psgd.client.compute import HostCompute, MakeCompute
from p2psgd.client.link import NOT_TERNARY, Link
from p2psgd.data.shard_list import ShardList
from p2psgd.ipc.client import ControlClient, NoDaemon
from p2psgd.ipc.listener import control_path, refuse_parts
from p2psgd.ipc.protocol import VERSION, AttachRequest, ProposedRun, close_descriptors, describe_fault
from p2psgd.ipc.run_proposal import choose_mode, propose
from p2psgd.ipc.segments import sealed_copy
from p2psgd.wire.messages import Fields

RETRY_S = 0.05  # between looks for a daemon that is just starting
_HOW_TO_HAVE_ONE = (
    'run this script by `p2psgd local --trainer "python SCRIPT"`, or start `p2psgd node`, and where that has'
    " --state DIR give this script P2PSGD_CONTROL=DIR"
)


def attach(
    initial: ArrayLike | Mapping[str, ArrayLike] | None = None,
    *,
    quantum: float = 2.0**-20,
    label: str = "",
    two_nodes: str = "stall",
    mode: str = "async",
    payload: str | None = None,
    rule: str | None = None,
    rounds: bool = False,
    full_precision: Collection[str] | None = None,
    shards: ShardList | None = None,
    control: str | Path | None = None,
    alone: bool | None = None,
    timeout_s: float = 30.0,
    make_compute: MakeCompute = HostCompute,
) -> Link:
    """Attach this process to the daemon of its node, as its trainer.

    Waits up to `timeout_s` for a daemon to listen, and then until its node may train; prints what it waits
    for.

    Args:
        initial: The weights that training starts from, the same on all nodes: a float array, or a mapping of
            names to float arrays, whose order is the order of the tensors. Each number is rounded to the
            nearest multiple of `quantum`. Default: the run that the daemon already knows.
        quantum: The unit of all weights, a power of two from `2**-30` to 1. Weights stay within `2**24`
            quanta, and begin within `2**23`. Default: `2**-20`.
        label: Free text that all nodes must agree on, such as a name for the data. Default: "".
        two_nodes: The policy when two nodes lose each other. "stall": both wait, because neither can know
            whether the other one is dead. "lower-id": the one with the lower node id goes on. Default:
            "stall".
        mode: "async": no node waits for another. "owners": nor there; each node adds up the changes of one
            range of the weights and sends the sums to all, so that what a node sends hardly grows with their
            number. "ring": all nodes train in lock-step rounds. "closure": nodes train nothing by themselves;
            they evaluate loss and gradient over all data together, with `Link.evaluate`. Default: "async".
        rounds: True to train in rounds in mode "owners": each node gives one change to each round, with
            `send` or `skip`, and `receive` waits until those of all are in the weights. Default: False.
        payload: What goes around the ring. "sparse": coded updates, as in "async". "dense": the float32
            changes of all weights, whose mean is applied. "dense-float16": the same, rounded to float16 on
            the way. In mode "owners" with rounds, "ternary": changes of all weights in three values, by
            chance such that their mean is right, and no residual. Default: "sparse".
        full_precision: With payload "ternary", the names of the tensors that are sent as they are. Default:
            the last one of two or more dimensions, and those after it: the last layer of most models.
        rule: What owners make of what nodes send. "sum": the sum of their changes. "adagrad", "adamw" and,
            in rounds, "nesterov" (SGD with Nesterov momentum): changes by the optimizer of that name, whose
            state each owner keeps for its range; nodes then send gradients, with the learning rate
            (`Link.send`). Settings may follow in brackets, such as "adamw(beta2=0.95, weight_decay=0.1)" and
            "nesterov(momentum=0.9)". Default: "sum".
        shards: The list of the data that the nodes share out, `p2psgd.data.Shards(...).list`. Default: none.
        control: The daemon's state directory or its socket. Default: $P2PSGD_CONTROL, else the default state
            directory.
        alone: True to train without others: the script starts a daemon of its own, which ends with it. For
            debuggers, notebooks and tests. Default: True if $P2PSGD_ALONE is 1.
        timeout_s: Seconds to wait for a daemon. Default: 30.
        make_compute: Where weights and residual are kept; `p2psgd.gpu.attach` passes its own. Default: host
            memory.

    Returns:
        The link. Close it, or use it in a with block.

    Raises:
        TrainerError: no daemon listens, an argument is invalid, a variable in the environment begins with
            P2PSGD_ and is not one of p2psgd's, or the daemon refuses: it has another run, or another trainer
            is attached.

    Example:
        ```python
        with p2psgd.attach({"weights": np.zeros(100, np.float32)}) as link:
            while link.steps < 1000 and not link.stopping:
                link.receive()
                link.send(-0.01 * gradient_at(link.weights), threshold=4000)
        ```
    """
    try:
        check_environment(os.environ)
    except UsageError as error:
        raise TrainerError(str(error)) from None
    by_itself = wants_alone(alone, control)
    if by_itself and mode == "ring":
        raise TrainerError(
            "a ring needs two nodes, and a script that trains alone is one: leave mode='ring' out here, or"
            " start the script on two nodes of this machine, p2psgd local -n 2 --trainer COMMAND"
        )
    run, coordinates = None, None
    if initial is None and shards is not None:
        raise TrainerError(
            "shards=... is agreed on with the initial weights: give these as well, or leave it out"
        )
    if shards is not None and not isinstance(shards, ShardList):
        raise TrainerError(f"shards must be the list of a p2psgd.data.Shards; it is {shards!r:.100}")
    try:
        if initial is not None:
            if full_precision is not None and not choose_mode(mode, payload, rule, rounds).ternary:
                raise TrainerError(NOT_TERNARY)
            proposal, coordinates = propose(
                initial,
                quantum=quantum,
                label=label if shards is None else shards.label(label),
                two_nodes=two_nodes,
                mode=choose_mode(mode, payload, rule, rounds).word,
                shards=0 if shards is None else len(shards.shards),
            )
            run = ProposedRun(**dataclasses.asdict(proposal))
        request = AttachRequest(version=VERSION, pid=os.getpid(), run=run)
    except ValidationError as error:
        raise TrainerError(f"attach: {describe_fault(error)}") from None
    own = None
    descriptors = [] if coordinates is None else [sealed_copy("p2psgd-initial", coordinates)]
    try:
        own = OwnDaemon() if by_itself else None
        path = control_path(control if own is None else own.state)
        link = _attach_by(
            time.monotonic() + timeout_s,
            path,
            request,
            descriptors,
            make_link=partial(Link, make_compute=make_compute, full_precision=full_precision),
            own=own,
            may_be_alone=alone is None and control is None and not os.environ.get("P2PSGD_CONTROL"),
        )
    except BaseException:
        if own is not None:
            own.close()
        raise
    finally:
        close_descriptors(descriptors)
    link.own_daemon = own
    return link


def _attach_by(
    deadline: float,
    path: Path,
    request: AttachRequest,
    descriptors: list[int],
    *,
    make_link: Callable[[ControlClient, Fields, list[int]], Link],
    own: OwnDaemon | None,
    may_be_alone: bool,
) -> Link:
    said = own is not None
    while True:
        left_s = deadline - time.monotonic()
        try:
            with contextlib.ExitStack() as undo:
                client = undo.enter_context(ControlClient(path, timeout_s=max(left_s, RETRY_S)))
                on_wait = say if own is None else lambda _: None  # alone there is nobody to wait for
                fields, segments = client.exchange(request, descriptors, on_wait=on_wait)
                link = make_link(client, fields, segments)
                undo.pop_all()
                if link.residual_age:
                    say(
                        f"the residual is that of {link.residual_age} mini-batch(es) ago: the trainer before"
                        " this one kept it on a GPU and ended without giving it back"
                    )
                return link
        except NoDaemon:
            if own is not None:
                own.check()
            else:
                refuse_parts(path)
            if left_s <= 0:
                alone = "; P2PSGD_ALONE=1 lets it train without others" if may_be_alone else ""
                raise TrainerError(f"no daemon answers at {path}: {_HOW_TO_HAVE_ONE}{alone}") from None
            if not said:
                said = True
                alone = ", and P2PSGD_ALONE=1 lets this script train without others" if may_be_alone else ""
                say(
                    f"no daemon answers at {path} yet: waiting up to {left_s:.0f} s for one;"
                    f" P2PSGD_CONTROL=DIR names one with --state DIR{alone}"
                )
        except DaemonLost as error:
            if left_s <= 0:
                raise TrainerError(str(error)) from None
        except UsageError as error:
            raise TrainerError(str(error)) from None
        time.sleep(RETRY_S)
