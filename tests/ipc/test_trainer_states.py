"""The daemon asks for its trainer's state, and a new daemon goes on from it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc.script_state import pack_state
from p2psgd.ipc.segments import create_segment, sealed_copy
from p2psgd.ipc.trainer_session import TrainerState
from tests.ipc.daemons import (
    WEIGHTS,
    ZEROS,
    Daemon,
    StartDaemon,
    changes_of,
    smallest_rings,
    spike,
    wait_until,
)
from tests.ipc.doomed_trainer import delta_of
from tests.ipc.test_killed_trainers import expected_after


@contextlib.contextmanager
def keeping_trainer(daemon: Daemon, sends: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.ipc.keeping_trainer", str(daemon.path), str(WEIGHTS), str(sends)]
    with subprocess.Popen([*command, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        try:
            yield it
        finally:
            it.kill()


def said(trainer: subprocess.Popen[str]) -> dict[str, Any]:
    assert trainer.stdout is not None
    fields: dict[str, Any] = json.loads(trainer.stdout.readline())
    return fields


def state_of(daemon: Daemon) -> TrainerState:
    """Ask, and wait for the answer."""
    number = len(daemon.host.states)
    daemon.call(daemon.server.session.request_state)
    daemon.until(lambda: len(daemon.host.states) > number, "the state has come")
    assert len(daemon.host.states) == number + 1
    return daemon.host.states[-1]


def check(daemon: Daemon, state: TrainerState, updates: int) -> None:
    """Residual and updates taken until then are those of the state's mini-batches."""
    assert state.residual is not None
    changes = changes_of(daemon.host.updates[:updates], WEIGHTS)
    assert max((update.steps for update in daemon.host.updates[:updates]), default=0) <= state.steps
    np.testing.assert_array_equal(state.residual + changes, expected_after(state.steps))


def test_a_busy_trainer_gives_states_that_fit_the_updates_taken_until_then(daemon: Daemon) -> None:
    with keeping_trainer(daemon, 400) as trainer:
        assert said(trainer) == {"steps": 0, "restored": None}
        states = [state_of(daemon) for _ in range(20)]
        assert said(trainer)["steps"] == 400
        states.append(state_of(daemon))
        for state, updates in zip(states, daemon.host.updates_at_states, strict=True):
            check(daemon, state, updates)
            assert state.script is not None
            assert state.script["steps"] == state.steps
            assert isinstance(state.script["table"], np.ndarray)
            assert state.script["table"].tolist() == [state.steps] * 5
        assert states[-1].steps == 400
        counts = [state.steps for state in states]
        assert counts == sorted(counts)


@pytest.mark.parametrize("die", [[], ["die"]])
def test_without_a_trainer_the_daemon_reads_the_state_itself(daemon: Daemon, die: list[str]) -> None:
    """The script's part is the one that it gave last: when it closed, or when it was asked."""
    with keeping_trainer(daemon, 7, *die) as trainer:
        said(trainer)
        early = state_of(daemon)
        said(trainer)
        trainer.communicate("now\n")
    daemon.until(lambda: bool(daemon.host.left), "the trainer has left")
    state = state_of(daemon)
    assert state.steps == 7
    assert state.script is not None
    assert early.script is not None
    assert state.script["steps"] == (early.script["steps"] if die else 7)
    check(daemon, state, len(daemon.host.updates))
    with keeping_trainer(daemon, 9) as trainer:
        assert said(trainer) == {"steps": 7, "restored": state.script["steps"]}
        assert said(trainer)["steps"] == 9


def test_a_trainer_that_dies_when_it_is_asked_leaves_its_state_behind(daemon: Daemon) -> None:
    with keeping_trainer(daemon, 5) as trainer:
        said(trainer), said(trainer)
        trainer.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, trainer.pid, os.WSTOPPED | os.WNOWAIT)
        daemon.call(daemon.server.session.request_state)
        daemon.call(daemon.server.session.request_state)
        assert not daemon.host.states
        trainer.kill()
        daemon.until(lambda: bool(daemon.host.states), "the state has come")
    assert [state.steps for state in daemon.host.states] == [5]
    check(daemon, daemon.host.states[0], len(daemon.host.updates))


def test_before_any_trainer_the_state_is_empty_or_what_was_restored(daemon: Daemon) -> None:
    state = state_of(daemon)
    assert (state.residual, state.script, state.steps) == (None, None, 0)
    restored = TrainerState(spike(3, 0.5), {"x": 1}, 4)
    daemon.call(daemon.server.session.restore, restored)
    state = state_of(daemon)
    assert (state.script, state.steps) == ({"x": 1}, 4)
    assert state.residual is not None
    np.testing.assert_array_equal(state.residual, spike(3, 0.5))
    assert daemon.trainer_status()["steps"] == 4


@pytest.mark.parametrize("steps", [6, 7])
def test_a_new_daemon_goes_on_from_a_state(start_daemon: StartDaemon, steps: int) -> None:
    first = start_daemon(1)
    with keeping_trainer(first, steps) as trainer:
        said(trainer), said(trainer)
        state = state_of(first)
    second = start_daemon(2)
    second.call(second.server.session.restore, state)
    with keeping_trainer(second, steps + 3) as trainer:
        assert said(trainer) == {"steps": steps, "restored": steps}
        assert said(trainer)["steps"] == steps + 3
        second.take_all()
        total = expected_after(steps + 3) - first.weights()
        later = state_of(second)
        assert later.residual is not None
        np.testing.assert_array_equal(later.residual + second.weights(), total)
        assert [update.steps for update in second.host.updates] == [*range(steps + 1, steps + 4)]


def test_a_script_that_keeps_nothing_and_never_receives_is_asked_all_the_same(daemon: Daemon) -> None:
    with attach(ZEROS, control=daemon.path) as link:
        link.send(delta_of(1, WEIGHTS), 8)
        daemon.call(daemon.server.session.request_state)
        link.send(delta_of(2, WEIGHTS), 8)
        assert not daemon.host.states
        link.send(delta_of(3, WEIGHTS), 8)
    assert [(state.steps, state.script) for state in daemon.host.states] == [(2, None)]
    check(daemon, daemon.host.states[0], daemon.host.updates_at_states[0])


def test_a_trainer_that_waits_for_room_or_for_peers_is_asked_meanwhile(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    with attach(ZEROS, control=daemon.path) as link:
        link.keep(lambda: {"steps": link.steps})
        daemon.call(daemon.server.session.request_state)
        assert not link.wait(0.01)
        assert len(daemon.host.states) == 1
    daemon.call(daemon.server.session.pause_outbox, paused=True)
    waits = "taking a snapshot from host2: 40 %"
    with keeping_trainer(daemon, 10**6) as trainer:
        said(trainer)
        daemon.until(lambda: bool(daemon.server.session.status()["waits"]), "it waits for room")
        assert "outbox is full" in daemon.trainer_status()["waits"]
        daemon.host.unready = waits
        assert daemon.trainer_status()["waits"] == waits
        state = state_of(daemon)
        check(daemon, state, daemon.host.updates_at_states[-1])
        daemon.host.unready = ""


def raw_state(daemon: Daemon, link: Link, descriptors: list[int], **fields: int) -> str:
    """What the daemon answers to a state that the test makes up."""
    memory = link._memory
    request = {"steps": memory.steps, "outbox": memory.published_bytes, **fields}
    message = msgpack.packb({"op": "state", **request})
    socket.send_fds(link._client._end, [message], descriptors)
    answer = msgpack.unpackb(link._client._end.recv(10_000))
    return str(answer.get("error", ""))


def test_a_state_that_does_not_check_is_refused_and_changes_nothing(daemon: Daemon) -> None:
    script = sealed_copy("script", *pack_state({"x": 1}))
    rubbish = sealed_copy("script", np.full(100, 255, np.uint8))
    empty = sealed_copy("script")
    unsealed = create_segment("script", 100)
    null = os.open("/dev/null", os.O_RDONLY)
    with attach(ZEROS, control=daemon.path) as link:
        link.send(delta_of(1, WEIGHTS), 8)
        link.send(delta_of(2, WEIGHTS), 8)
        daemon.take_all()
        daemon.call(daemon.server.session.request_state)
        assert "comes with one descriptor, not with 2" in raw_state(daemon, link, [script] * 2)
        assert "must come in a memfd" in raw_state(daemon, link, [null])
        assert "sealed against shrinking and writing" in raw_state(daemon, link, [unsealed])
        assert "is empty" in raw_state(daemon, link, [empty])
        assert "claims to have" in raw_state(daemon, link, [rubbish])
        assert "no update of the outbox ends at" in raw_state(daemon, link, [], outbox=2**40)
        assert "of a trainer that has come to 2" in raw_state(daemon, link, [], steps=1)
        assert "of a trainer that has come to 2" in raw_state(daemon, link, [], steps=3)
        assert raw_state(daemon, link, [script], outbox=8) == ""  # too late: no mistake, and no state
        assert not daemon.host.states
        assert daemon.call(lambda: daemon.server.session.script.state) is None
        link.receive()
        assert [state.steps for state in daemon.host.states] == [2]
        assert raw_state(daemon, link, [script]) == ""  # nobody has asked
        assert len(daemon.host.states) == 1
        assert daemon.trainer_status()["refused_requests"] == 8
    for descriptor in (script, rubbish, empty, unsealed, null):
        os.close(descriptor)


def test_what_was_lent_stays_as_it_is(daemon: Daemon) -> None:
    """The next trainer works on a copy of the residual."""
    with keeping_trainer(daemon, 3) as trainer:
        trainer.communicate("now\n")
    lent: list[NDArray[np.float32]] = []
    daemon.host.trainer_state = lambda state: lent.append(state.residual)  # type: ignore
    daemon.call(daemon.server.session.request_state)
    daemon.call(daemon.server.session.request_state)
    assert np.shares_memory(lent[0], lent[1])
    assert not lent[0].flags.writeable
    before = lent[0].copy()
    for number in (4, 5, 6, 7):
        with keeping_trainer(daemon, number) as trainer:
            assert said(trainer)["steps"] == number - 1
            trainer.communicate("now\n")
        np.testing.assert_array_equal(lent[0], before)
        daemon.take_all()
    daemon.call(daemon.server.session.request_state)
    np.testing.assert_array_equal(lent[-1] + daemon.weights(), expected_after(7))


def test_what_cannot_be_kept_is_refused_when_it_is_announced(daemon: Daemon) -> None:
    with attach(ZEROS, control=daemon.path) as link:
        with pytest.raises(
            TrainerError, match="'optimizer' of the state is a dict; possible are numpy arrays"
        ):
            link.keep(lambda: {"optimizer": {}})
        daemon.call(daemon.server.session.request_state)
        link.receive()
        assert daemon.host.states[0].script is None


def test_a_script_that_fails_gives_no_torn_state(daemon: Daemon) -> None:
    kept = {"n": 1}
    link = attach(ZEROS, control=daemon.path)
    link.keep(lambda: kept)
    daemon.call(daemon.server.session.request_state)
    link.receive()
    kept["n"] = 2
    with pytest.raises(ZeroDivisionError), link:
        _ = 1 // 0
    with attach(control=daemon.path) as link:
        assert link.restored == {"n": 1}


def test_an_interrupted_answer_is_given_again(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with attach(ZEROS, control=daemon.path) as link:
        link.keep(lambda: {"n": link.steps})
        for place in ("_await_answer", "_forget_exchange"):
            link.send(delta_of(link.steps + 1, WEIGHTS), 8)
            daemon.call(daemon.server.session.request_state)
            with monkeypatch.context() as patch:
                patch.setattr(link._client, place, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    link.receive()
            link.send(delta_of(link.steps + 1, WEIGHTS), 8)
            link.receive()
            link.receive()
        assert len(daemon.host.states) == 2
        for state, updates in zip(daemon.host.states, daemon.host.updates_at_states, strict=True):
            check(daemon, state, updates)
            assert state.script == {"n": state.steps}
        assert daemon.trainer_status()["refused_requests"] == 0


def test_states_leave_no_descriptors_behind(daemon: Daemon) -> None:
    gc.collect()  # maps of tests before this one hold descriptors until then
    with attach(ZEROS, control=daemon.path) as link:
        link.keep(lambda: {"x": np.zeros(10)})
        counts = []
        for _ in range(5):
            daemon.call(daemon.server.session.request_state)
            link.receive()
            assert len(daemon.host.states) == 1
            daemon.host.states.clear()  # a map holds a descriptor for as long as it lives
            counts.append(daemon.call(lambda: len(os.listdir("/proc/self/fd"))))
    assert len(set(counts)) == 1


def gives(link: Link, daemon: Daemon) -> bool:
    link._keeping.give_now_and_then()
    return daemon.server.session.script.state == {"steps": 4}


def test_a_state_that_nobody_has_asked_for_answers_no_wish(daemon: Daemon) -> None:
    """It lacks the residual, so no checkpoint may take it; the script's part is kept."""
    steps = 0
    with attach(np.zeros(3000, np.float32), control=daemon.path) as link:
        link.keep(lambda: {"steps": steps})
        daemon.call(daemon.server.session.request_state)
        steps = 3
        link._keeping.give_now_and_then()
        assert daemon.server.session.script.state == {"steps": 3}
        steps = 4
        link._keeping.give_now_and_then()
        assert daemon.server.session.script.state == {"steps": 3}, "not more than once a second"
        wait_until(lambda: gives(link, daemon), "it is given again")
        assert not daemon.host.states
        link.receive()
        assert [state.script for state in daemon.host.states] == [{"steps": 4}]
