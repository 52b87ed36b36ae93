"""The link goes on after somebody has pressed Ctrl+C, wherever that was."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc.ring_buffer import Counter
from p2psgd.wire import codec
from tests.ipc.daemons import (
    QUANTUM,
    WEIGHTS,
    ZEROS,
    Daemon,
    StartDaemon,
    changes_of,
    make_update,
    make_words,
    smallest_rings,
    spike,
)


def raise_interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class LineInterrupt:
    """A trace function that raises KeyboardInterrupt at the n-th line or return within these modules."""

    MODULES = ("p2psgd/client/", "p2psgd/ipc/", "p2psgd/wire/")

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._local if any(part in frame.f_code.co_filename for part in self.MODULES) else None

    def _local(self, frame: FrameType, event: str, _: Any) -> Any:
        if event in ("line", "return"):
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {event}"
                raise KeyboardInterrupt
        return self._local


def test_an_interruption_at_any_line_of_reload_receive_and_send_tears_nothing(
    start_daemon: StartDaemon,
) -> None:
    """The link that goes on has all of the peer's update and all or nothing of its own.

    The state that it gives is that of one moment.
    """
    daemon = start_daemon()
    before = len(os.listdir("/proc/self/fd"))
    with attach(ZEROS, control=daemon.path) as link:
        link.keep(lambda: {"n": link.steps})
        link.send(spike(1, 3.5), 2)
        number, interrupted = 0, True
        totals = {1: spike(1, 3.5)}  # of all deltas up to this mini-batch
        while interrupted:
            number += 1
            interrupt = LineInterrupt(number)
            expected = link.weights + link.residual
            daemon.peer_update(make_update(make_words(np.array([7]), np.array([0])), WEIGHTS))
            expected += spike(7, 1) + spike(9, 3)
            delta = spike(number % 1000, 3) + spike(1500, 0.25)
            daemon.call(daemon.server.session.request_state)
            link._exact = False  # as if a call before this one had been interrupted
            interrupted = False
            try:
                sys.settrace(interrupt)
                link.receive()
                link.send(delta, 2)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(None)
            steps = link.steps
            if steps not in totals:
                totals[steps] = totals[steps - 1] + delta
            totals[steps + 1] = totals[steps] + spike(9, 3)
            link.receive()
            link.send(spike(9, 3), 2)
            assert link.steps == steps + 1, interrupt.where
            daemon.take_all()
            np.testing.assert_array_equal(link.weights, daemon.weights(), interrupt.where)
            (state,), (updates,) = daemon.host.states, daemon.host.updates_at_states
            assert state.residual is not None
            assert state.script == {"n": state.steps}, interrupt.where
            sent = changes_of(daemon.host.updates[:updates], WEIGHTS)
            np.testing.assert_array_equal(sent + state.residual, totals[state.steps], interrupt.where)
            daemon.host.states.clear()
            daemon.host.updates_at_states.clear()
            done = link.weights + link.residual - expected
            assert not done.any() or (done == delta).all(), interrupt.where
            status = daemon.trainer_status()
            assert (status["refused_requests"], status["copies_mended"]) == (0, 0), interrupt.where
    assert number > 300  # else it has not been interrupted everywhere
    # An answer's or a state's descriptor has no owner for the few lines in which it is handed over or closed.
    assert len(os.listdir("/proc/self/fd")) <= before + 40


def test_an_interrupted_reload_is_made_up_for_even_if_the_inbox_has_filled_again_since(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    random = np.random.default_rng(1)

    def fill_inbox() -> None:
        for _ in range(50):
            indices = np.sort(random.choice(WEIGHTS, 700, replace=False))
            daemon.peer_update(make_update(make_words(indices, random.integers(0, 2, 700)), WEIGHTS))

    with attach(ZEROS, control=daemon.path) as link:
        fill_inbox()
        with monkeypatch.context() as patch:
            patch.setattr(link._client, "_await_answer", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                link.receive()
        daemon.until(lambda: daemon.server.session.status()["reloads"] == 1, "the first reload")
        fill_inbox()
        assert link.wait(0)
        assert link.receive() == 0
        np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(
    "where", ["residual_pass", "encode", "apply_weights", "decode_into", "apply_weights_together"]
)
def test_after_an_interruption_the_next_call_makes_the_weights_whole_again(
    daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As when somebody presses Ctrl+C in a notebook and goes on."""
    daemon.peer_update(make_update(make_words(np.array([1]), np.array([0])), WEIGHTS))
    with monkeypatch.context() as patch:
        patch.setattr(codec, where, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            link.receive()
            link.send(spike(2, 3), 2)
    link.receive()
    np.testing.assert_array_equal(link.weights, daemon.weights())
    assert link.weights[1] == QUANTUM
    link.send(spike(4, 3), 2)
    daemon.take_all()
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(
    ("call", "counter", "done"),
    [
        ("_outbox.put", None, False),
        ("_counters.store", Counter.STEPS, False),
        ("_counters.store", Counter.OUTBOX_HEAD, True),
        ("_wake_daemon.signal", None, True),
    ],
)
@pytest.mark.parametrize("steps", [1, 2, 7])  # mini-batches of a send
def test_an_interrupted_send_has_been_done_or_not_been_done(
    daemon: Daemon, link: Link, *, call: str, counter: Counter | None, done: bool, steps: int
) -> None:
    """Interrupted at the end of this call, it leaves nothing that the next send would build on or repeat."""
    link.send(spike(1, 3.5), 2)
    part, name = call.split(".")
    owner = getattr(link._memory, part)
    function = getattr(owner, name)

    def call_and_interrupt(*arguments: Any) -> Any:
        function(*arguments)
        if counter in (None, arguments[0] if arguments else None):
            raise KeyboardInterrupt

    setattr(owner, name, call_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        link.send(spike(2, 3), 2, steps=steps)
    setattr(owner, name, function)
    assert (link.steps, link.residual[2]) == (1 + done * steps, done * QUANTUM)  # before any further call
    assert link.send(spike(3, 3), 2, steps=steps) == 1
    assert link.steps == 1 + (1 + done) * steps
    assert daemon.trainer_status()["steps"] == link.steps
    daemon.take_all()
    counts = [update.steps for update in daemon.host.updates]
    assert counts == [1 + steps * sends for sends in range(2 + done)]
    np.testing.assert_array_equal(link.weights, daemon.weights())
    expected = spike(1, 3.5) + spike(2, 3) * done + spike(3, 3)
    np.testing.assert_array_equal(link.weights + link.residual, expected)
