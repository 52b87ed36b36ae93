"""Rounds of a ring in which one node is on a device and the other is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.client.dense_links import INITIAL, WEIGHTS, both, follow, random_delta
from tests.gpu.backends import Backend
from tests.gpu.links import Attach, attach_gpu, loop_factory, start_daemon
from tests.ipc.daemons import StartDaemon
from tests.ipc.rings import DenseRing

__all__ = ["attach_gpu", "loop_factory", "start_daemon"]  # fixtures


@pytest.fixture(params=["dense", "dense-float16"])
def pair(
    start_daemon: StartDaemon, attach_gpu: Attach, request: pytest.FixtureRequest
) -> Iterator[tuple[Any, Any]]:
    """A link on the device and one in the host's memory, their first round open."""
    daemons = [start_daemon(1), start_daemon(2)]
    ring = DenseRing(daemons, WEIGHTS)
    there = attach_gpu(INITIAL, mode="ring", payload=request.param, control=daemons[0].path)
    with follow(daemons[1], request.param) as here:
        ring.open()
        yield there, here


def test_a_share_given_whole_or_tensor_by_tensor_ends_in_the_same_weights(
    gpu: Backend, pair: tuple[Any, Any]
) -> None:
    there, here = pair
    np.testing.assert_array_equal(there.weights.get(), here.weights)
    for seed in range(4):
        deltas = [gpu.cupy.asarray(random_delta(seed)), random_delta(100 + seed)]

        def give(link: Any, node: int, deltas: list[Any] = deltas, whole: bool = seed % 2 == 0) -> None:
            if whole:
                link.send(deltas[node])
                assert link.receive() == 2
                return
            link.receive()
            begin = 0
            for name, tensor in link.proposed.items():
                tensor[...] = deltas[node][begin : begin + tensor.size].reshape(tensor.shape)
                begin += tensor.size
                link.allreduce_begin(name)
            assert link.allreduce_wait() == 2

        before = here.weights.copy()
        both(give, pair)
        assert not np.array_equal(before, here.weights)
        np.testing.assert_array_equal(there.weights.get(), here.weights)


def test_denormal_weights_and_means_stay(gpu: Backend, pair: tuple[Any, Any]) -> None:
    """CuPy's own arithmetic would make zeros of them."""
    there, here = pair
    small = np.tile(np.array([1e-39, -3e-39, 2e-38, 1e-20], np.float32), WEIGHTS)[:WEIGHTS]
    for turn in range(2):
        both(lambda link, node: link.send([gpu.cupy.asarray(small), small][node]), pair)
        both(lambda link, _: link.receive(), pair)
        np.testing.assert_array_equal(there.weights.get(), here.weights, f"turn {turn}")


def test_a_bit_that_changes_on_the_device_is_found_by_the_digest_and_mended(
    gpu: Backend, pair: tuple[Any, Any]
) -> None:
    there, here = pair
    for turn, wrong in enumerate((False, True, False)):
        both(lambda link, node: link.send([gpu.cupy.ones, np.ones][node](WEIGHTS, np.float32)), pair)
        both(lambda link, _: link.receive(), pair)
        if wrong:
            there.weights.view(np.uint32)[5] ^= np.uint32(1)
        there._keeping.given = True
        there.receive()
        np.testing.assert_array_equal(there.weights.get(), here.weights, f"turn {turn}")


def test_a_share_that_is_not_finite_is_refused_with_its_place(gpu: Backend, pair: tuple[Any, Any]) -> None:
    there, _ = pair
    there.receive()
    for tensor in there.proposed.values():
        tensor.fill(0)
    there.proposed["bias"][7] = np.nan
    there.allreduce_begin("weight")
    with pytest.raises(TrainerError, match=r"proposed\['bias'\] is refused: number 7 is nan"):
        there.allreduce_begin("bias")


def test_any_array_is_summed_from_the_hosts_memory(gpu: Backend, pair: tuple[Any, Any]) -> None:
    def add(link: Any, node: int) -> None:
        result = link.allreduce(np.full((3, 2), 1 + node, np.float32), op="sum")
        np.testing.assert_array_equal(result, np.full((3, 2), 3, np.float32))

    both(add, pair)
