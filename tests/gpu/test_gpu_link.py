"""A link whose weights and residual are on a device, beside one in the host's memory: the same in all."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.ipc import layout
from tests.data.lists import shard_list
from tests.gpu.backends import Backend
from tests.gpu.links import TENSORS, WEIGHTS, Attach, attach_gpu, initial, loop_factory, sent_by, start_daemon
from tests.ipc.daemons import QUANTUM, StartDaemon, make_update, make_words, smallest_rings
from tests.ipc.doomed_trainer import delta_of
from tests.wide import widely

__all__ = ["attach_gpu", "loop_factory", "start_daemon"]  # fixtures

STEPS: list[int | Mapping[str, int]] = [
    8,
    {"in": 8, "bias": 3, "scale": 8, "out": 5},
    {"in": 9, "bias": 9, "scale": 1, "out": 9},
    1,
]


@pytest.fixture(autouse=True, params=["late", "eager"])
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the link's own stream works: a wait for an event that is left out shows in one or the other."""
    if request.param == "eager" and request.node.get_closest_marker("gpu"):
        pytest.skip("a device has a schedule of its own")
    monkeypatch.setenv("CUDA_ON_HOST_STREAMS", request.param)


def check_equal(there: Any, here: Any) -> None:
    np.testing.assert_array_equal(there.weights.get(), here.weights)
    np.testing.assert_array_equal(there.residual.get(), here.residual)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_deltas_make_the_same_bytes_weights_and_residuals_as_on_the_host(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, dtype: str
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    there = attach_gpu(initial(), control=daemons[0].path)
    with attach(initial(), control=daemons[1].path) as here:
        np.testing.assert_array_equal(there.weights.get(), here.weights)
        for number in range(12):
            delta, step = delta_of(number, WEIGHTS).astype(dtype), STEPS[number % len(STEPS)]
            assert there.send(gpu.cupy.asarray(delta), step) == here.send(delta, step)
            assert there.sent == here.sent
            check_equal(there, here)
            for name, tensor in here.tensors.items():
                np.testing.assert_array_equal(there.tensors[name].get(), tensor)
        sent = sent_by(daemons[0])
        assert sent == sent_by(daemons[1])
        assert len(sent) > 12


def test_shards_are_counted_behind_the_weights_as_on_the_host(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    shards = shard_list(300)
    there = attach_gpu(initial(), control=daemons[0].path, shards=shards)
    with attach(initial(), control=daemons[1].path, shards=shards) as here:
        for number in range(4):
            for link in (there, here):
                link.count_shard(7 * number, held=1 + number, used=number)
                link.count_shard(299, held=-1)
            delta = delta_of(number, WEIGHTS)
            assert there.send(gpu.cupy.asarray(delta), 8) == here.send(delta, 8)
            check_equal(there, here)
        np.testing.assert_array_equal(there.shard_counts, here.shard_counts)
        assert there.shard_counts[:, 21].tolist() == [4, 3]
        assert there.shard_counts[:, 299].tolist() == [-4, 0]
        assert sent_by(daemons[0]) == sent_by(daemons[1])
        np.testing.assert_array_equal(daemons[0].weights(), daemons[1].weights())


@pytest.mark.parametrize("low", widely([1 << 18], [1 << 23]))
def test_what_finds_no_room_in_a_send_waits_and_has_its_turn_as_on_the_host(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, low: int
) -> None:
    shapes = {"low": low, "high": 50_000}
    parts = {name: np.zeros(size, np.float32) for name, size in shapes.items()}
    delta = np.full(sum(shapes.values()), 9 * QUANTUM, np.float32)
    delta[::3] *= -1
    daemons = [start_daemon(1), start_daemon(2)]
    there = attach_gpu(parts, control=daemons[0].path)
    with attach(parts, control=daemons[1].path) as here:
        for step in (4, 4, {"low": 3, "high": 2}, 4):
            sent = there.send(gpu.cupy.asarray(delta), step)
            assert sent == here.send(delta, step)
            assert layout.send_indices_max(delta.size) - 1 <= sent < delta.size
            check_equal(there, here)
        assert sent_by(daemons[0]) == sent_by(daemons[1])


@pytest.mark.parametrize("updates", [1, 64, 200])
def test_updates_of_peers_are_applied_as_on_the_host_and_their_mini_batches_noted(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, updates: int
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    there = attach_gpu(initial(), control=daemons[0].path)
    draw = np.random.default_rng(updates)
    with attach(initial(), control=daemons[1].path) as here:
        for turn in range(3):
            for number in range(updates):
                indices = np.flatnonzero(draw.random(WEIGHTS) < 0.1)
                words = make_words(indices, draw.random(indices.size) < 0.5)
                body = make_update(words, WEIGHTS, steps=1 + number, node=7 + number % 3, magnitude=1 + turn)
                for daemon in daemons:
                    daemon.peer_update(body)
            assert there.receive() == here.receive() == updates
            assert there.peer_steps == here.peer_steps
            delta = delta_of(turn, WEIGHTS)
            there.send(gpu.cupy.asarray(delta), 8)
            here.send(delta, 8)
            check_equal(there, here)
        daemons[0].take_all()
        np.testing.assert_array_equal(there.weights.get(), daemons[0].weights())


def test_work_on_the_trainers_stream_sees_the_weights_before_or_after_a_receive_as_it_was_ordered(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    words = make_words(np.arange(WEIGHTS), np.zeros(WEIGHTS, bool))
    for turn in range(1, 5):
        daemon.peer_update(make_update(words, WEIGHTS))
        before = link.weights.copy()
        link.receive()
        change = link.weights - before
        np.testing.assert_array_equal(change.get(), np.full(WEIGHTS, QUANTUM, np.float32), f"turn {turn}")


def test_work_ordered_before_a_receive_and_not_yet_done_sees_the_weights_of_before(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    runtime, current = gpu.cupy.cuda.runtime, gpu.cupy.cuda.get_current_stream()
    words = make_words(np.arange(WEIGHTS), np.zeros(WEIGHTS, bool))
    for _ in range(4):
        expected = link.weights.get()
        daemon.peer_update(make_update(words, WEIGHTS))
        seen = gpu.cupy.zeros(WEIGHTS, np.float32)
        runtime.memcpyAsync(
            seen.data.ptr, link.weights.data.ptr, seen.nbytes, runtime.memcpyDeviceToDevice, current.ptr
        )
        assert link.receive() == 1
        np.testing.assert_array_equal(seen.get(), expected)
        np.testing.assert_array_equal(link.weights.get(), expected + np.float32(QUANTUM))


def test_what_came_from_peers_is_applied_while_a_send_waits_for_the_device_and_counted_by_receive(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    there = attach_gpu(initial(), control=daemons[0].path)
    words = make_words(np.arange(0, WEIGHTS, 3), np.arange(0, WEIGHTS, 3) % 2)
    with attach(initial(), control=daemons[1].path) as here:
        for _ in range(5):
            for daemon in daemons:
                daemon.peer_update(make_update(words, WEIGHTS, steps=4))
        assert not there.peer_steps
        there.send(gpu.cupy.asarray(delta_of(1, WEIGHTS)), 8)
        here.send(delta_of(1, WEIGHTS), 8)
        assert there.peer_steps == {7: 4}
        for daemon in daemons:
            daemon.peer_update(make_update(words, WEIGHTS))
        assert there.wait(0)
        assert there.receive() == here.receive() == 6
        assert not there.wait(0)
        check_equal(there, here)
        assert sent_by(daemons[0]) == sent_by(daemons[1])


def test_an_interruption_while_a_send_applies_what_came_is_made_good_by_the_next_call(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    link.send(gpu.cupy.asarray(delta_of(1, WEIGHTS)), 8)
    daemon.peer_update(make_update(make_words(np.arange(WEIGHTS), np.zeros(WEIGHTS, bool)), WEIGHTS))
    residual = link.residual.get()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gpu.load("working_copy").DeviceWorkingCopy, "_apply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            link.send(gpu.cupy.asarray(delta_of(2, WEIGHTS)), 8)
    np.testing.assert_array_equal(link.residual.get(), residual)
    assert link.steps == 1
    link.send(gpu.cupy.asarray(delta_of(2, WEIGHTS)), 8)
    daemon.take_all()
    np.testing.assert_array_equal(link.weights.get(), daemon.weights())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_delta_that_is_not_finite_is_refused_with_nothing_changed_and_the_hosts_sentence(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, value: float
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    there = attach_gpu(initial(), control=daemons[0].path)
    with attach(initial(), control=daemons[1].path) as here:
        bad = delta_of(1, WEIGHTS)
        bad[2900] = value
        for number, delta in enumerate((delta_of(0, WEIGHTS), bad, delta_of(2, WEIGHTS), bad)):
            if delta is bad:
                with pytest.raises(TrainerError) as refusal:
                    here.send(delta, STEPS[1])
                with pytest.raises(TrainerError) as same:
                    there.send(gpu.cupy.asarray(delta), STEPS[1])
                assert str(same.value) == str(refusal.value)
            else:
                here.send(delta, STEPS[1])
                there.send(gpu.cupy.asarray(delta), STEPS[1])
            check_equal(there, here)
            assert there.steps == here.steps == (number // 2 + 1)
        assert sent_by(daemons[0]) == sent_by(daemons[1])


def test_a_delta_that_is_none_is_refused_by_a_sentence(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    link = attach_gpu(initial(), control=start_daemon().path)
    with pytest.raises(TrainerError, match=r"must be a CuPy array \(2958,\) of float32, .*; it is ndarray"):
        link.send(np.zeros(WEIGHTS, np.float32), 1)
    with pytest.raises(TrainerError, match=r"it is float64 \(2958,\)"):
        link.send(gpu.cupy.zeros(WEIGHTS, "float64"), 1)
    with pytest.raises(TrainerError, match=r"it is float32 \(7,\)"):
        link.send(gpu.cupy.zeros(7, "float32"), 1)
    assert link.steps == 0


def test_after_more_updates_than_the_inbox_holds_the_weights_are_those_of_the_replica(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    link = attach_gpu(initial(), control=daemon.path)
    link.send(gpu.cupy.asarray(delta_of(1, WEIGHTS)), 8)
    words = make_words(np.arange(WEIGHTS), np.arange(WEIGHTS) % 2)
    for _ in range(200):
        daemon.peer_update(make_update(words, WEIGHTS))
    assert link.receive() < 200
    daemon.take_all()
    assert daemon.trainer_status()["reloads"] == 1
    np.testing.assert_array_equal(link.weights.get(), daemon.weights())


@pytest.mark.parametrize("bit", [0, 12, 30, 31])
def test_a_bit_that_changes_on_the_device_is_found_by_the_digest_and_mended(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach, bit: int
) -> None:
    daemon = start_daemon()
    link = attach_gpu(initial(), control=daemon.path)
    words = make_words(np.arange(0, WEIGHTS, 3), np.arange(0, WEIGHTS, 3) % 2)
    for turn, wrong in enumerate((False, True, False)):
        link.send(gpu.cupy.asarray(delta_of(turn, WEIGHTS)), 8)
        if wrong:
            link.weights.view(np.uint32)[2800] ^= np.uint32(1 << bit)
        for _ in range(3):
            daemon.peer_update(make_update(words, WEIGHTS))
        daemon.call(daemon.server.session.request_state)
        assert link.receive() == 3
        np.testing.assert_array_equal(link.weights.get(), daemon.weights())
        assert daemon.trainer_status()["copies_mended"] == (turn > 0)


def test_the_run_that_the_daemon_knows_is_attached_to_without_weights(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemon = start_daemon()
    device = {name: gpu.cupy.asarray(tensor) for name, tensor in initial().items()}
    attach_gpu(device, control=daemon.path).close()
    link = attach_gpu(control=daemon.path)
    assert {name: tensor.shape for name, tensor in link.tensors.items()} == TENSORS
    np.testing.assert_array_equal(link.weights.get(), daemon.weights())


def test_weights_that_the_device_has_no_room_for_are_refused_by_a_sentence(
    start_daemon: StartDaemon, host_gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    daemon = start_daemon()
    with monkeypatch.context() as patch:
        patch.setattr(host_gpu.cupy, "empty", fail)
        with pytest.raises(TrainerError, match=r"cuda:0, .* has no room for 2958 weights: they and their"):
            importlib.import_module("p2psgd.gpu").attach(initial(), control=daemon.path)
    daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")
    with attach(control=daemon.path) as link:
        assert link.steps == 0
