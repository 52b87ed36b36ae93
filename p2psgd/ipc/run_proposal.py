"""A trainer's proposal of a run: tensors, quantum, and all weights as multiples of the quantum.

weight = quantum * coordinate. The rounding happens once, here, in float64: all nodes that start from the same
arrays propose the same coordinates, whatever machine they run on. Everything after it is integer arithmetic.

For a dense ring nothing is rounded to a quantum: the coordinates are the bit patterns of the weights as
float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.wire import codec
from p2psgd.wire.mode import ASYNC, CLOSURE, PAYLOADS, TERNARY, Mode, parse_mode, with_rule
from p2psgd.wire.rule import parse_rule

QUANTUM_LOG2_MIN = -30
BEGUN = (
    2**22
)  # quanta: a run whose very first weight is below has got its first weights (client/first_weights.py)
PIECE_WEIGHTS = 1 << 20  # rounded at once: 8 MiB of float64

TWO_NODES = (
    "stall",
    "lower-id",
)  # what a run of two nodes does when one is lost: wait, or the lower id goes on


def awaits_first_weights(coordinates: NDArray[np.int32]) -> bool:
    """Return whether these (C,) are the common start of a run whose first node is to give the weights."""
    return len(coordinates) > 0 and coordinates[0] >= BEGUN and not coordinates[1:].any()


Tensors = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class RunProposal:
    """The run as a trainer describes it; with the initial coordinates it is all that a fingerprint covers."""

    tensors: Tensors
    quantum_log2: int
    mode: str
    label: str
    two_nodes: str = TWO_NODES[0]
    shards: int = 0

    @property
    def weights(self) -> int:
        """Return P: how many weights all tensors hold together."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def coordinates(self) -> int:
        """Return C: how many coordinates a replica has, weights and shard counts together."""
        return self.weights + codec.COUNTS_PER_SHARD * self.shards


def propose(
    initial: ArrayLike | Mapping[str, ArrayLike],
    *,
    quantum: float,
    label: str,
    two_nodes: str = TWO_NODES[0],
    mode: str = ASYNC.word,
    shards: int = 0,
) -> tuple[RunProposal, NDArray[np.int32]]:
    """Return the proposal and its coordinates, int32 (C,), for an array or for named arrays in their order;
    `shards` is the number of shards to count, from zero.

    Raises TrainerError for a weight that is not finite or beyond 2**23 quanta, in a dense ring beyond what
    float32 holds, for anything but floating-point arrays, for a quantum that is not a power of two within
    2**-30 and 1, for a `two_nodes` that is none of TWO_NODES, for a `mode` that is not known, and for shards
    in a ring.
    """
    try:
        parsed = parse_mode(mode)
    except ValueError as error:
        raise TrainerError(str(error)) from None
    if parsed != ASYNC and shards:
        why = (
            "in a ring all nodes wait for each other's data"
            if parsed.ring
            else "evaluations deal portions of their own"
            if parsed.closure
            else "owners add up weights alone"
        )
        raise TrainerError(
            f"shards are dealt out in async mode only, for {why}: "
            "leave mode out, or have each node read a share of its own"
        )
    quantum_log2 = measure_quantum(quantum)
    if two_nodes not in TWO_NODES:
        raise TrainerError(
            f"two_nodes {two_nodes!r:.100} is refused: of two nodes that lose each other both wait, 'stall',"
            " or the one with the lower node id goes on, 'lower-id'"
        )
    named = initial if isinstance(initial, Mapping) else {"weights": initial}
    arrays = {str(name): np.asarray(values) for name, values in named.items()}
    for name, values in arrays.items():
        if values.dtype.kind != "f":
            raise TrainerError(f"tensor {name!r} holds {values.dtype}; initial weights are float32 arrays")
        if values.size == 0:
            raise TrainerError(f"tensor {name!r} of shape {values.shape} holds no weights; leave it out")
    tensors = tuple((name, values.shape) for name, values in arrays.items())
    proposal = RunProposal(tensors, quantum_log2, mode, label, two_nodes, shards)
    weights_max = codec.WEIGHTS_MAX - codec.COUNTS_PER_SHARD * shards
    if not 1 <= proposal.weights <= weights_max:
        raise TrainerError(
            f"the initial tensors hold {proposal.weights} weights; 1 to {weights_max} are possible"
        )
    coordinates = np.zeros(proposal.coordinates, dtype=np.int32)
    start = 0
    for name, values in arrays.items():
        part = coordinates[start : start + values.size]
        if parsed.dense:
            _write_tensor(name, values.reshape(-1), part.view(np.float32))
        else:
            _round_tensor(name, values.reshape(-1), part, quantum_log2)
        start += values.size
    return proposal, coordinates


def choose_mode(mode: object, payload: object, rule: object = None, rounds: object = False) -> Mode:
    """Return the mode that a script asks for in these words; TrainerError with those that there are."""
    if rule is not None and mode != "owners":
        raise TrainerError(f"rule={rule!r:.100} is for owners: give mode='owners' as well, or leave it out")
    if mode not in ("async", "owners", "ring", "closure"):
        raise TrainerError(
            f"mode {mode!r:.100} is refused: the modes are 'async', 'owners', 'ring' and 'closure'"
        )
    if type(rounds) is not bool:
        raise TrainerError(f"rounds {rounds!r:.100} is refused: give True or False")
    if rounds and mode != "owners":
        alone = f"in mode {mode!r} no node waits for another"
        why = "a ring has rounds in any case" if mode == "ring" else alone
        raise TrainerError(f"rounds=True is for mode='owners': {why}, so leave it out")
    if payload == TERNARY and not rounds:
        words = f"payload={payload!r} is for owners in rounds"
        raise TrainerError(f"{words}: give mode='owners' and rounds=True as well, or leave it out")
    if mode != "ring":
        if payload not in (None, TERNARY):
            words = f"payload={payload!r:.100} is for a ring"
            raise TrainerError(f"{words}: give mode='ring' as well, or leave it out")
        if mode == "closure":
            return CLOSURE
        try:
            owners = Mode(str(payload or ""), owners=mode == "owners", rounds=rounds)
            return with_rule(owners, parse_rule(str(rule or "sum")))
        except ValueError as error:
            raise TrainerError(str(error)) from None
    payload = PAYLOADS[0] if payload is None else payload
    if payload not in PAYLOADS:
        *first, last = map(repr, PAYLOADS)
        raise TrainerError(f"payload {payload!r:.100} is refused: give {', '.join(first)} or {last}")
    return Mode(str(payload))


def measure_quantum(quantum: Any) -> int:
    """Return log2 of the quantum; TrainerError unless it is a power of two within 2**-30 and 1."""
    if isinstance(quantum, float | int | np.floating) and math.isfinite(quantum):
        mantissa, exponent = math.frexp(float(quantum))
        if mantissa == 0.5 and QUANTUM_LOG2_MIN <= exponent - 1 <= 0:
            return exponent - 1
    raise TrainerError(f"quantum {quantum!r} is not a power of two within 2**-30 and 1, such as 2**-20")


def _round_tensor(name: str, values: NDArray[Any], coordinates: NDArray[np.int32], quantum_log2: int) -> None:
    for start in range(0, values.size, PIECE_WEIGHTS):
        piece = values[start : start + PIECE_WEIGHTS].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.rint(piece / 2.0**quantum_log2)
        beyond = ~(np.abs(rounded) <= codec.COORDINATE_WARN)  # true for NaN as well
        if beyond.any():
            place = int(beyond.argmax())
            raise TrainerError(
                f"weight {start + place} of tensor {name!r} is {piece[place]:g}; initial weights are finite"
                f" and within +-{codec.COORDINATE_WARN * 2.0**quantum_log2:g}, 2**23 quanta of"
                f" 2**{quantum_log2}: take a larger quantum, or smaller initial weights"
            )
        coordinates[start : start + piece.size] = rounded


def _write_tensor(name: str, values: NDArray[Any], weights: NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        weights[:] = values
    wrong = ~np.isfinite(weights)
    if wrong.any():
        place = int(wrong.argmax())
        raise TrainerError(
            f"weight {place} of tensor {name!r} is {values[place]:g}; initial weights are finite"
            f" and within +-{np.finfo(np.float32).max:g}, what float32 holds"
        )
