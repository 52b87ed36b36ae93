"""How a training script comes by its link: it proposes a run to its node's daemon, and waits until that lets
it train.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from numpy.typing import ArrayLike
from pydantic import ValidationError

from p2psgd.client.host_compute import HostCompute, MakeCompute
from p2psgd.client.link import Link
from p2psgd.client.shard_counts import with_counts
from p2psgd.data.shard_list import ShardList
from p2psgd.errors import DaemonLost, TrainerError, UsageError
from p2psgd.ipc.client import ControlClient, NoDaemon
from p2psgd.ipc.listener import control_path
from p2psgd.ipc.protocol import VERSION, AttachRequest, ProposedRun, close_descriptors, describe_fault
from p2psgd.ipc.run_proposal import choose_mode, propose
from p2psgd.ipc.segments import sealed_copy

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
    order: str = "id",
    shards: ShardList | None = None,
    control: str | Path | None = None,
    timeout_s: float = 30.0,
    make_compute: MakeCompute = HostCompute,
) -> Link:
    """Attach this process to the daemon of its node as its trainer.

    `initial`: the weights that training starts from, the same on all nodes: a float array or a mapping of
    names to arrays, whose order is the tensors' order; each is rounded to the nearest multiple of `quantum`,
    a power of two within 2**-30 and 1. None: the run that the daemon already knows. `label` is part of what
    nodes must agree on, and so is `two_nodes`: of two nodes that lose each other both wait ("stall"), or the
    one with the lower node id goes on ("lower-id"). `mode` "async": nobody waits for anybody; "ring": all
    train in step, round after round, and `payload` says what goes around: "sparse" (so if it is not
    given), coded updates as in async, "dense", the float32 changes of all weights, whose mean is applied, or
    "dense-float16", the same rounded to float16 on its way; `order` of the ring is by node "id", or
    "measured". `shards`: the list of the data that the nodes of the run share out among them; see
    docs/how-to/data.md.
    `control` is the daemon's state directory or its socket, by default $P2PSGD_CONTROL, else the default
    state directory. `make_compute` says where weights and residual lie: p2psgd.gpu has another.

    Waits up to `timeout_s` for a daemon to listen there, and then for as long as it takes until its node may
    train; what it waits for is printed at once. TrainerError if no daemon listens, if initial weights or any
    of the words beside them will not do, or with the daemon's sentence if it refuses: another run, or
    another trainer attached.
    """
    path = control_path(control)
    run, coordinates = None, None
    if initial is None and shards is not None:
        raise TrainerError(
            "shards=... is agreed on with the initial weights: give these as well, or leave it out"
        )
    try:
        if initial is not None:
            if shards is not None:
                chosen = choose_mode(mode, payload, order).word
                initial, label = with_counts(initial, label, shards, chosen)
            proposal, coordinates = propose(
                initial,
                quantum=quantum,
                label=label,
                two_nodes=two_nodes,
                mode=choose_mode(mode, payload, order).word,
            )
            run = ProposedRun(**dataclasses.asdict(proposal))
        request = AttachRequest(version=VERSION, pid=os.getpid(), run=run)
    except ValidationError as error:
        raise TrainerError(f"attach: {describe_fault(error)}") from None
    descriptors = [] if coordinates is None else [sealed_copy("p2psgd-initial", coordinates)]
    try:
        return _attach_by(time.monotonic() + timeout_s, path, request, descriptors, make_compute)
    finally:
        close_descriptors(descriptors)


def _attach_by(
    deadline: float,
    path: Path,
    request: AttachRequest,
    descriptors: list[int],
    make_compute: MakeCompute,
) -> Link:
    said = False
    while True:
        left_s = deadline - time.monotonic()
        try:
            with contextlib.ExitStack() as undo:
                client = undo.enter_context(ControlClient(path, timeout_s=max(left_s, RETRY_S)))
                fields, segments = client.exchange(request, descriptors, on_wait=_say)
                link = Link(client, fields, segments, make_compute)
                undo.pop_all()
                if link.residual_age:
                    _say(
                        f"the residual is that of {link.residual_age} mini-batch(es) ago: the trainer before"
                        " this one kept it on a GPU and ended without giving it back"
                    )
                return link
        except NoDaemon:
            if left_s <= 0:
                raise TrainerError(f"no daemon answers at {path}: {_HOW_TO_HAVE_ONE}") from None
            if not said:
                said = True
                _say(
                    f"no daemon answers at {path} yet: waiting up to {left_s:.0f} s for one;"
                    " P2PSGD_CONTROL=DIR names one with --state DIR"
                )
        except DaemonLost as error:
            if left_s <= 0:
                raise TrainerError(str(error)) from None
        except UsageError as error:
            raise TrainerError(str(error)) from None
        time.sleep(RETRY_S)


def _say(words: str) -> None:
    print(f"p2psgd: {ascii(words)[1:-1]}", file=sys.stderr, flush=True)
