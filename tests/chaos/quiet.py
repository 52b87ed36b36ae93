"""A quiet point: everything is healed, no trainer makes updates, and all replicas must become equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import P2psgdError
from p2psgd.cli.local.verify import Convergence, Frontier, Origin, frontier_of, prove, who_lacks_what
from p2psgd.observe.status import read_status
from p2psgd.recipes.gradients import evaluate
from p2psgd.wire.mode import parse_mode
from tests.chaos import counts, evaluations
from tests.chaos.evaluations import Evaluated
from tests.chaos.nodes import Node
from tests.chaos.trainer import RECIPE

CONVERGED_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class QuietPoint:
    """What was found: `took_s` from the healing to equal frontiers; `findings` is empty if all is well;
    `counted` what the stretches of each node come to in the replica, in mini-batches (counts.py). In mode
    `closure` `digest` is that of the last `evaluation` that all trainers have made.
    """

    at_s: float
    took_s: float
    findings: tuple[str, ...]
    frontier: Mapping[Origin, int]
    digest: str | None
    test_accuracy: float | None
    counted: NDArray[np.float64] | None = None
    evaluation: int | None = None


def find_equal(
    nodes: Sequence[Node], *, began: float, turn: Callable[[], None], evaluation: int | None = None
) -> QuietPoint:
    """Wait until all nodes answer and have applied the same, and compare their replicas byte by byte.

    `began`: when the run did, on the monotonic clock; `turn` is called all the while, to keep the daemons up.
    `evaluation`: in mode `closure`, to which all trainers are to come, with the same results.
    """
    since = time.monotonic()
    for node in nodes:
        node.scrub()
    convergence = Convergence(CONVERGED_WITHIN_S, since)
    while True:
        turn()
        statuses = {node.name: node.look() for node in nodes}
        flipped = {node.name for node in nodes if node.life is not None and node.life.is_flipped}
        frontiers = {
            name: _frontier(status)
            for name, status in statuses.items()
            if status and status.get("run") and status.get("ready", True) and name not in flipped
        }
        now = time.monotonic()
        late = [] if evaluation is None else evaluations.behind(_evaluated(nodes), evaluation)
        if len(frontiers) == len(nodes) and not late:
            convergence.look(frontiers, now)
        if convergence.reached:
            for node in nodes:
                node.remember(now)
            applied = frontiers[nodes[0].name].applied
            point = _compare(nodes, applied, at_s=now - began, took_s=now - since)
            again = [node.look() for node in nodes] if point.findings else []
            if all(each and _frontier(each).applied == applied for each in again):
                return point  # else an owner has published meanwhile what it still had
        if now - since > CONVERGED_WITHIN_S:
            silent = [f"{name} is not ready" for name in sorted(statuses.keys() - frontiers.keys())]
            lacking = who_lacks_what(frontiers) + silent + late
            for node in nodes:
                node.keep_status()
            words = f"not equal within {CONVERGED_WITHIN_S:.0f} s: {'; '.join(lacking) or 'still moving'}"
            return QuietPoint(now - began, now - since, (words,), {}, None, None)
        time.sleep(LOOK_EVERY_S)


def _evaluated(nodes: Sequence[Node]) -> dict[str, Evaluated]:
    return {node.name: node.evaluated() for node in nodes}


def _frontier(status: Mapping[str, Any]) -> Frontier:
    """What a node has applied, and how many of its contributions no update covers. In rounds these are left
    out: the trainers rest, and contributions for a range that has moved wait for the next round.
    """
    frontier = frontier_of(read_status(status))
    return replace(frontier, uncovered=0) if parse_mode(status["run"]["mode"]).rounds else frontier


def _compare(
    nodes: Sequence[Node], applied: Mapping[Origin, int], *, at_s: float, took_s: float
) -> QuietPoint:
    status = nodes[0].look(10.0) or {}
    try:
        key = int.from_bytes(bytes.fromhex(status["run"]["fingerprint"])[:8], "little")
        replicas = [node.replica() for node in nodes]
    except (P2psgdError, KeyError) as error:
        return QuietPoint(at_s, took_s, (f"a replica could not be had: {error}",), applied, None, None)
    proof = prove(replicas, key)
    if parse_mode(replicas[0].mode).closure:
        by_node = _evaluated(nodes)
        findings = [*proof.findings, *evaluations.differing(by_node)]
        last = min(evaluated.last for evaluated in by_node.values())
        digest = None if findings else "".join(by_node[nodes[0].name].digests[last])
        return QuietPoint(at_s, took_s, tuple(findings), applied, digest, None, evaluation=last)
    weights = replicas[0].weights
    _, accuracy = evaluate(RECIPE, weights[counts.is_net(len(weights))])
    counted = counts.counted(replicas[0].coordinates)
    digest = None if proof.digest is None else f"{proof.digest:016x}"
    return QuietPoint(at_s, took_s, tuple(proof.findings), applied, digest, accuracy, counted)
