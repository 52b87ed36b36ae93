"""A trainer that leaps to the largest count of mini-batches ends itself, and nobody else."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.base.errors import CheckpointError
from p2psgd.client.attach import attach
from p2psgd.ipc import layout
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX, STEPS_MAX, Counter, pack_steps, published
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.node.recovery import unpack_trainer
from p2psgd.storage.checkpoint import TrainerCheckpoint
from p2psgd.wire import codec
from tests.ipc.daemons import QUANTUM, WEIGHTS, ZEROS, Daemon, make_words, wait_until


def test_the_counter_has_room_for_a_send_beyond_the_largest_count() -> None:
    packed = pack_steps(STEPS_MAX + SEND_STEPS_MAX, SEND_STEPS_MAX, 1)
    assert packed < 2**64
    assert (published(packed, 1), published(packed, 0)) == (STEPS_MAX + SEND_STEPS_MAX, STEPS_MAX)


def test_a_count_beyond_it_is_refused_and_the_next_trainer_attaches(daemon: Daemon) -> None:
    daemon.call(lambda: daemon.server.session.restore(TrainerState(None, None, STEPS_MAX - 5, 0)))
    link = attach(ZEROS, quantum=QUANTUM, control=daemon.path)
    payload = codec.encode(make_words(np.array([1]), np.array([0])), WEIGHTS)
    memory = link._memory
    memory._outbox.put(layout.OUTBOX_ENTRY.pack(STEPS_MAX + 1, 1, 1, 0.0) + payload)
    memory._counters.store(Counter.OUTBOX_HEAD, memory._outbox.head)
    memory._wake_daemon.signal()
    wait_until(lambda: not daemon.trainer_status()["attached"], "the liar is refused")
    link._client.close()
    with attach(ZEROS, quantum=QUANTUM, control=daemon.path) as second:
        assert second.steps == STEPS_MAX - 5


def test_at_the_largest_count_a_trainer_still_attaches(daemon: Daemon) -> None:
    daemon.call(lambda: daemon.server.session.restore(TrainerState(None, None, STEPS_MAX, 0)))
    with attach(ZEROS, quantum=QUANTUM, control=daemon.path) as link:
        assert link.steps == STEPS_MAX


@pytest.mark.parametrize("steps", [STEPS_MAX + 1, 2**63])
def test_a_checkpoint_with_a_count_beyond_it_is_refused(steps: int) -> None:
    text = f'{{"steps": {steps}, "residual_age": 0}}'
    with pytest.raises(CheckpointError, match="is not a count"):
        unpack_trainer(TrainerCheckpoint(1, np.zeros(WEIGHTS, np.float32), {}, text))
