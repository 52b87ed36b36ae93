"""What becomes of a residual on a device when its trainer ends, in whatever way."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.node.recovery import pack_trainer, unpack_trainer
from tests import DEADLINE_S
from tests.gpu.backends import STAND_IN, Backend
from tests.gpu.links import WEIGHTS, Attach, attach_gpu, die, initial, loop_factory, start_daemon
from tests.ipc.daemons import StartDaemon
from tests.ipc.doomed_trainer import delta_of

__all__ = ["attach_gpu", "loop_factory", "start_daemon"]  # fixtures


def send(gpu: Backend, link: Any, number: int = 1) -> NDArray[np.float32]:
    """So many sends; the residual then."""
    for _ in range(number):
        link.send(gpu.cupy.asarray(delta_of(link.steps + 1, WEIGHTS)), 8)
    residual: NDArray[np.float32] = link.residual.get()
    assert residual.any()
    return residual


@pytest.mark.parametrize("sends", [1, 2])
def test_a_trainer_that_leaves_hands_its_residual_on_to_the_host_and_back(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, sends: int
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    residual = send(gpu, link, sends)
    link.close()
    with attach(control=daemon.path) as here:
        assert here.residual_age == 0
        np.testing.assert_array_equal(here.residual, residual)
        here.send(delta_of(here.steps + 1, WEIGHTS), 8)
        residual = here.residual.copy()
    link = attach_gpu(control=daemon.path)
    assert link.residual_age == 0
    np.testing.assert_array_equal(link.residual.get(), residual)


@pytest.mark.parametrize("later", [1, 2])
def test_after_a_crash_it_is_the_last_copy_and_its_age_is_said(
    start_daemon: StartDaemon,
    gpu: Backend,
    attach_gpu: Attach,
    capsys: pytest.CaptureFixture[str],
    later: int,
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path, residual_copy_s=0)
    residual = send(gpu, link, 3)
    link.receive()  # when a copy is due
    link._compute._residual._copy_s = 1e9
    send(gpu, link, later)
    die(link, daemon)
    link = attach_gpu(control=daemon.path)
    assert (link.steps, link.residual_age) == (3 + later, later)
    assert f"the residual is that of {later} mini-batch" in capsys.readouterr().err
    np.testing.assert_array_equal(link.residual.get(), residual)
    np.testing.assert_array_equal(link.weights.get(), daemon.weights())
    send(gpu, link)


def test_without_a_copy_since_it_attached_it_is_what_it_began_with(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    send(gpu, link, 3)
    die(link, daemon)
    link = attach_gpu(control=daemon.path)
    assert (link.steps, link.residual_age) == (3, 3)
    assert not link.residual.get().any()


def test_its_age_stays_until_a_trainer_publishes_and_goes_into_checkpoints(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon(1)
    link = attach_gpu(initial(), control=daemon.path)
    send(gpu, link, 3)
    die(link, daemon)
    for _ in range(2):
        with attach(control=daemon.path) as here:
            assert (here.steps, here.residual_age) == (3, 3)
            daemon.call(daemon.server.session.request_state)
            here.receive()
    daemon.call(daemon.server.session.request_state)
    assert [state.residual_age for state in daemon.host.states] == [3, 3, 3]
    link = attach_gpu(control=daemon.path)
    send(gpu, link)
    die(link, daemon)
    link = attach_gpu(control=daemon.path)
    assert link.residual_age == 4

    state = unpack_trainer(pack_trainer(daemon.host.states[-1], WEIGHTS, 3))
    assert state is not None
    other = start_daemon(2)
    other.call(other.server.session.restore, state)
    with attach(initial(), control=other.path) as here:
        assert (here.steps, here.residual_age) == (3, 3)
        here.send(delta_of(1, WEIGHTS), 8)
        other.call(other.server.session.request_state)
        here.receive()
    assert other.host.states[-1].residual_age == 0
    with attach(control=other.path) as here:
        assert here.residual_age == 0


def test_the_daemon_gets_the_residual_of_the_moment_when_it_asks(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    residual = send(gpu, link, 2)
    daemon.call(daemon.server.session.request_state)
    link.receive()
    (state,) = daemon.host.states
    assert state.residual is not None
    np.testing.assert_array_equal(state.residual, residual)
    send(gpu, link)
    die(link, daemon)  # and that copy serves the next trainer too
    with attach(control=daemon.path) as here:
        assert here.residual_age == 1
        np.testing.assert_array_equal(here.residual, residual)


@pytest.mark.parametrize("after_launch", [False, True])
def test_a_send_that_was_interrupted_has_changed_nothing_and_the_next_one_is_right(
    start_daemon: StartDaemon,
    gpu: Backend,
    attach_gpu: Attach,
    monkeypatch: pytest.MonkeyPatch,
    after_launch: bool,
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    link = attach_gpu(initial(), control=daemons[0].path)
    residual = send(gpu, link, 2)
    state = gpu.load("pass_state").PassState

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "read" if after_launch else "begin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            send(gpu, link)
    assert link.steps == 2
    np.testing.assert_array_equal(link.residual.get(), residual)
    residual = send(gpu, link)
    with attach(initial(), control=daemons[1].path) as here:
        for number in range(3):
            here.send(delta_of(number + 1, WEIGHTS), 8)
        np.testing.assert_array_equal(here.residual, residual)
        np.testing.assert_array_equal(here.weights, link.weights.get())


@pytest.mark.parametrize("at", ["table", "launch", "meanwhile"])
def test_memory_of_a_pass_that_was_interrupted_anywhere_is_kept_and_serves_the_next(
    start_daemon: StartDaemon,
    gpu: Backend,
    attach_gpu: Attach,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """The device may still be reading it: it must not go back to where others get theirs from."""
    daemons = [start_daemon(1), start_daemon(2)]
    link = attach_gpu(initial(), control=daemons[0].path)
    send(gpu, link, 2)
    residual = link._compute._residual
    state = residual._state
    places: dict[str, tuple[Any, str]] = {
        "table": (gpu.load("pass_state"), "_copy"),
        "launch": (gpu.load("pass_state").PassState, "launched"),
        "meanwhile": (link, "_receive_early"),
    }
    owner, name = places[at]
    whole = getattr(owner, name)

    def interrupt(*arguments: Any, **named: Any) -> None:
        whole(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "table":
            state._groups = ()
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            send(gpu, link)
    assert residual._state is state
    assert link.steps == 2
    send(gpu, link, 2)
    assert residual._state is state
    with attach(initial(), control=daemons[1].path) as here:
        for number in range(4):
            here.send(delta_of(number + 1, WEIGHTS), 8)
        np.testing.assert_array_equal(here.residual, link.residual.get())
        np.testing.assert_array_equal(here.weights, link.weights.get())


SCRIPT = """
import signal, sys, time
import cupy
import numpy as np
import p2psgd.gpu

with p2psgd.gpu.attach(np.zeros(1000, np.float32), device="cuda:0") as link:
    for _ in range(5):
        link.send(cupy.asarray(np.full(1000, 1e-6, np.float32)), threshold=1000)
    np.save(sys.argv[1], link.residual.get())
    print("trained", flush=True)
    signal.pause()
"""


@pytest.mark.usefixtures("host_compiler")
def test_a_script_that_its_daemon_ends_by_sigterm_leaves_its_residual(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon()
    kept = tmp_path / "residual.npy"
    places = [str(STAND_IN), str(Path(__file__).parents[2])]
    environment = {**os.environ, "P2PSGD_CONTROL": str(daemon.path), "PYTHONPATH": os.pathsep.join(places)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, kept], env=environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "trained\n"
        script.send_signal(signal.SIGTERM)
        assert script.wait(DEADLINE_S) == 128 + signal.SIGTERM
    daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")
    with attach(control=daemon.path) as here:
        assert (here.steps, here.residual_age) == (5, 0)
        assert here.residual.any()
        np.testing.assert_array_equal(here.residual, np.load(kept))


def test_a_script_that_handles_sigterm_itself_goes_on_doing_so(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    def handle(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handle)
    try:
        attach_gpu(initial(), control=start_daemon().path)
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_advice_to_raise_a_limit_is_for_memory_alone(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned, runtime = host_gpu.load("memory"), host_gpu.cupy.cuda.runtime
    for reason, advised in (
        ("cudaErrorMemoryAllocation: out of memory", True),
        ("cudaErrorNotSupported: operation not supported", False),
    ):

        def refuse(*_: object, reason: str = reason) -> None:
            raise runtime.CUDARuntimeError(reason)

        pinned._note.cache_clear()
        monkeypatch.setattr(runtime, "hostRegister", refuse)
        pinned.Registered(np.zeros(4, np.float32)).close()
        said = capsys.readouterr().err
        assert reason in said
        assert ("ulimit -l" in said) == advised
    pinned._note.cache_clear()


def test_the_time_between_copies_comes_from_the_environment_or_the_call(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = start_daemon().path
    monkeypatch.setenv("P2PSGD_RESIDUAL_COPY_S", "7.5")
    link = attach_gpu(initial(), control=path)
    assert link._compute._residual._copy_s == 7.5
    link.close()
    link = attach_gpu(control=path, residual_copy_s=3)
    assert link._compute._residual._copy_s == 3
    link.close()
    with pytest.raises(TrainerError, match="residual_copy_s = -1 is refused: it must be a number of sec"):
        attach_gpu(control=path, residual_copy_s=-1)
    monkeypatch.setenv("P2PSGD_RESIDUAL_COPY_S", "soon")
    with pytest.raises(TrainerError, match="P2PSGD_RESIDUAL_COPY_S=soon is refused"):
        attach_gpu(control=path)


def test_where_memory_cannot_be_page_locked_all_is_the_same_and_it_is_said_once(
    start_daemon: StartDaemon,
    host_gpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_ON_HOST_REFUSE_PINNING", "1")
    gpu = importlib.import_module("p2psgd.gpu")
    daemons = [start_daemon(1), start_daemon(2)]
    with (
        gpu.attach(initial(), control=daemons[0].path) as there,
        attach(initial(), control=daemons[1].path) as here,
    ):
        for number in range(3):
            here.send(delta_of(number + 1, WEIGHTS), 8)
        np.testing.assert_array_equal(send(host_gpu, there, 3), here.residual)
        np.testing.assert_array_equal(there.weights.get(), here.weights)
    assert capsys.readouterr().err.count("cannot be page-locked") == 1
