"""Recovery after a restart: votes, checkpoint, own updates and the trainer's state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base import formatting
from p2psgd.base.errors import CheckpointError, ExitCode, TrainerError, UsageError
from p2psgd.core.events import Restored
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.view import NO_VOTES, Votes
from p2psgd.ipc.ring_buffer import STEPS_MAX
from p2psgd.ipc.script_state import pack_state, unpack_state
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.storage.checkpoint import Checkpoint, TrainerCheckpoint
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.files import FOLDER, VOTES_NAME, becoming_another
from p2psgd.storage.restore import FoundOnDisk, restore
from p2psgd.storage.votes import check_votes, read_votes, write_votes
from p2psgd.wire import codec
from p2psgd.wire.messages import ORIGINS_MAX

# ----------------------------------------------------------------------------
# The trainer's state between the control socket and a checkpoint.


SCRIPT: Final = "script"  # the array that holds the script's own state, as its memfd does


def pack_trainer(state: TrainerState, weights: int, sequence: int) -> TrainerCheckpoint:
    """Copy the trainer's state for a checkpoint; `sequence` own updates are contained in it."""
    residual = np.zeros(weights, np.float32) if state.residual is None else state.residual.copy()
    arrays = {} if state.script is None else {SCRIPT: np.concatenate(pack_state(state.script))}
    text = json.dumps({"steps": state.steps, "residual_age": state.residual_age})
    return TrainerCheckpoint(sequence, residual, arrays, text)


def unpack_trainer(kept: TrainerCheckpoint | None) -> TrainerState | None:
    """Read the trainer's state from a checkpoint; CheckpointError if it cannot be one."""
    if kept is None:
        return None
    try:
        counts = json.loads(kept.text)
        steps, age = counts["steps"], counts.get("residual_age", 0)
        if any(type(count) is not int or not 0 <= count <= STEPS_MAX for count in (steps, age)):
            raise ValueError("its number of steps is not a count")
        script = kept.arrays.get(SCRIPT)
        state = None if script is None else unpack_state(np.asarray(script))
    except (ValueError, LookupError, TypeError, TrainerError) as error:
        raise CheckpointError(f"the trainer's state in the checkpoint cannot be used: {error}") from None
    return TrainerState(kept.residual, state, steps, age)


# ----------------------------------------------------------------------------
# The state that a node goes on from: its votes, its newest whole checkpoint and its own updates since, as its
# state directory has them.
#
# A checkpoint holds the whole description of its run, so a node that has one needs no trainer to take part.


@dataclass(frozen=True, slots=True, eq=False)
class RecoveredRun:
    """A run and its content on disk. `coordinates` int32 (P,): the run's initial ones, or `restored`'s.

    `names`: the names of members of the view, as far as this node knew. The first trainer goes on from
    `trainer`, and `kept` is the same for the next checkpoint.
    """

    spec: RunSpec
    store: CheckpointStore
    coordinates: NDArray[np.int32]
    votes: Votes
    names: Mapping[int, str]
    restored: Restored | None = None
    trainer: TrainerState | None = None
    kept: TrainerCheckpoint | None = None


def open_run(state: Path, spec: RunSpec, coordinates: NDArray[np.int32], node_log: NodeLog) -> RecoveredRun:
    """Open the run whose initial `coordinates` are given, with what the state directory has of it.

    UsageError if that is another run's, or damaged.
    """
    found = restore(state / FOLDER, spec)
    votes, names = _read_votes(state, spec, new=found is None)
    if found is None:
        return RecoveredRun(spec, CheckpointStore(state / FOLDER), coordinates, votes, names)
    if found.checkpoint is not None:
        return _go_on(votes, names, found, node_log)
    for warning in found.warnings:
        node_log.alarm(warning)
    words = "no checkpoint was written yet: steps, optimizer, schedule and residual of the trainer begin anew"
    node_log.note("restored", words)
    digest = codec.digest_coordinates(coordinates, spec.key)
    restored = Restored(coordinates, [], digest, [], found.own)
    return RecoveredRun(spec, found.store, coordinates, votes, names, restored)


def reopen_run(state: Path, node_log: NodeLog) -> RecoveredRun | None:
    """Open the run of the newest whole checkpoint in the state directory; None without one: only a trainer
    then knows the run and its initial weights.

    UsageError if votes or own updates there are another run's, or damaged.
    """
    check_votes(state)  # first: a large checkpoint takes its time, and without one only a trainer would hear
    found = restore(state / FOLDER, None)
    if found is None:
        return None
    if found.checkpoint is not None:
        votes, names = _read_votes(state, found.checkpoint.spec, new=False)
        return _go_on(votes, names, found, node_log)
    for warning in found.warnings:
        node_log.alarm(f"{warning}; without a checkpoint this node waits for its trainer")
    return None


def _read_votes(state: Path, spec: RunSpec, *, new: bool) -> tuple[Votes, Mapping[int, str]]:
    """Read the votes; UsageError if there are none though this node has had part in the run: it must not vote
    again.
    """
    found = read_votes(state, spec.fingerprint)
    if found is not None:
        return found
    if not new:
        raise UsageError(
            f"{state / VOTES_NAME} is missing, and a node that has forgotten its votes must not vote: put it "
            f"back if it was moved away, or: {becoming_another(state)}",
            ExitCode.CONFIGURATION,
        )
    write_votes(state, spec.fingerprint, NO_VOTES, {})
    return NO_VOTES, {}


def _go_on(votes: Votes, names: Mapping[int, str], found: FoundOnDisk, node_log: NodeLog) -> RecoveredRun:
    """Open a run from a checkpoint."""
    checkpoint = found.checkpoint
    assert checkpoint is not None
    if len(checkpoint.rows) >= ORIGINS_MAX:
        words = f"this run has seen {ORIGINS_MAX} starts of daemons and can take no more"
        raise UsageError(
            f"{words}: export its weights (p2psgd checkpoint export) and begin another run from them",
            ExitCode.CONFIGURATION,
        )
    for warning in found.warnings:
        node_log.alarm(warning)
    trainer, kept = None, None
    if checkpoint.trainer is not None:
        kept = replace(checkpoint.trainer, sequence=0)  # of this life, nothing is in it
    try:
        trainer = unpack_trainer(checkpoint.trainer)
    except CheckpointError as error:
        node_log.alarm(f"{error}; the trainer begins anew")
    since = formatting.counted(len(found.own), "own update") if found.own else "no own updates"
    when = datetime.fromtimestamp(checkpoint.written_at).astimezone().isoformat(" ", "seconds")
    node_log.note("restored", f"goes on from a checkpoint of {when} and {since} since")
    restored = restored_from(checkpoint, found.own)
    return RecoveredRun(
        checkpoint.spec, found.store, restored.coordinates, votes, names, restored, trainer, kept
    )


def restored_from(checkpoint: Checkpoint, own: list[bytes]) -> Restored:
    """Build the state that a replica goes on from: a checkpoint, and the own updates since then."""
    return Restored(
        checkpoint.coordinates,
        checkpoint.rows,
        checkpoint.digest,
        list(checkpoint.tail),
        own,
        checkpoint.rounds,
        checkpoint.covers,
        checkpoint.rule_states,
    )
