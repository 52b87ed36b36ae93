"""The trainer's state between the control socket and a checkpoint."""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from p2psgd.durable.checkpoint import TrainerState as KeptState
from p2psgd.errors import CheckpointError, TrainerError
from p2psgd.ipc.host import TrainerState
from p2psgd.ipc.script_state import pack_state, unpack_state

SCRIPT: Final = "script"  # the array that holds the script's own state, as its memfd does


def pack_trainer(state: TrainerState, weights: int, sequence: int) -> KeptState:
    """A copy for a checkpoint; `sequence` own updates are contained in it."""
    residual = np.zeros(weights, np.float32) if state.residual is None else state.residual.copy()
    arrays = {} if state.script is None else {SCRIPT: np.concatenate(pack_state(state.script))}
    text = json.dumps({"mini_batches": state.mini_batches, "residual_age": state.residual_age})
    return KeptState(sequence, residual, arrays, text)


def unpack_trainer(kept: KeptState | None) -> TrainerState | None:
    """From a checkpoint; CheckpointError if it is no such state."""
    if kept is None:
        return None
    try:
        counts = json.loads(kept.text)
        mini_batches, age = counts["mini_batches"], counts.get("residual_age", 0)
        if any(type(count) is not int or count < 0 for count in (mini_batches, age)):
            raise ValueError("its count of mini-batches is none")
        script = kept.arrays.get(SCRIPT)
        state = None if script is None else unpack_state(np.asarray(script))
    except (ValueError, LookupError, TypeError, TrainerError) as error:
        raise CheckpointError(f"the trainer's state in the checkpoint cannot be used: {error}") from None
    return TrainerState(kept.residual, state, mini_batches, age)
