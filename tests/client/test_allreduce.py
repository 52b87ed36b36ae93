"""Arrays that are summed or averaged over the nodes of a dense ring."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.ipc.layout import DENSE_NUMBERS_MIN
from p2psgd.wire.ring_messages import ARRAY
from tests.client.dense_links import WEIGHTS, Vector, both, follow, random_delta
from tests.ipc.daemons import StartDaemon
from tests.ipc.rings import DenseRing


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0), (5,), (7, 3, 2), (DENSE_NUMBERS_MIN,), (2 * DENSE_NUMBERS_MIN + 3,)]
)
def test_any_array_is_summed_or_averaged(
    pair: tuple[DenseRing, Link, Link], shape: tuple[int, ...], op: str
) -> None:
    _, first, second = pair
    arrays = [
        np.array(np.random.default_rng(node).normal(size=shape), np.float32, order="F") for node in (0, 1)
    ]
    results: dict[int, Vector] = {}
    before = first.weights.copy()
    first.proposed["bias"][:] = 5

    def reduce(link: Link, node: int) -> None:
        results[node] = link.allreduce(arrays[node], op)

    both(reduce, (first, second))
    expected = (arrays[0] + arrays[1]) / np.float32(2 if op == "mean" else 1)
    for result in results.values():
        assert (str(result.dtype), result.shape) == ("float32", shape)
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(first.weights, before)
    assert (first.proposed["bias"] == 5).all()
    assert first.steps == 0


def test_an_array_in_the_links_memory_is_summed_where_it_is(pair: tuple[DenseRing, Link, Link]) -> None:
    _, first, second = pair

    def reduce(link: Link, _: int) -> None:
        array = link.array(2, 3)
        assert link.array((2, 3)).ctypes.data == array.ctypes.data
        array[:] = [[1, 2, 3], [4, 5, 6]]
        assert link.allreduce(array, "sum").tolist() == [[2, 4, 6], [8, 10, 12]]
        assert link.allreduce(array[1], "sum").tolist() == [8, 10, 12]
        assert link.contributors == 2
        array[:] = 3
        assert link.allreduce(array, out=array) is array
        assert (array == 3).all()

    both(reduce, (first, second))
    with pytest.raises(TrainerError, match="1073741824 numbers are wanted, and 262144 have room"):
        first.array(1 << 30)


@pytest.mark.parametrize(
    "out", [np.zeros(4, np.float32), np.zeros(3), np.zeros(6, np.float32)[::2], np.zeros((3, 1), np.float32)]
)
def test_another_array_for_the_result_is_refused(
    alone: tuple[DenseRing, Link], out: NDArray[np.float32]
) -> None:
    with pytest.raises(TrainerError, match="out must be a writable, contiguous array of float32"):
        alone[1].allreduce(np.zeros(3, np.float32), out=out)


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_a_sum_that_is_not_copied_is_where_the_daemon_made_it(
    pair: tuple[DenseRing, Link, Link], shape: tuple[int, ...]
) -> None:
    _, first, second = pair
    before: dict[int, Vector] = {}

    def reduce(link: Link, node: int) -> None:
        total = before[node] = link.allreduce(np.full(shape, 1 + node, np.float32), "sum", copy=False)
        assert (total.shape, total.flags.writeable) == (shape, False)
        assert (total == 3).all()

    both(reduce, (first, second))

    def go_on(link: Link, _: int) -> None:
        for value in (10, 20):
            link.allreduce(np.full(shape, value, np.float32), "sum")

    both(go_on, (first, second))
    assert all((total == 40).all() for total in before.values())  # two rounds later others lie there


def test_what_cannot_stay_where_it_is_is_refused(alone: tuple[DenseRing, Link]) -> None:
    _, link = alone
    few = np.zeros(3, np.float32)
    with pytest.raises(TrainerError, match='copy=False gives a sum as it lies, without op "mean"'):
        link.allreduce(few, copy=False)
    with pytest.raises(TrainerError, match="copy=False gives a sum as it lies, without out"):
        link.allreduce(few, "sum", out=few, copy=False)
    with pytest.raises(TrainerError, match="262145 numbers are summed in several rounds, of 262144 at most"):
        link.allreduce(np.zeros(DENSE_NUMBERS_MIN + 1, np.float32), "sum", copy=False)


def test_an_array_between_send_and_receive_loses_no_round(pair: tuple[DenseRing, Link, Link]) -> None:
    ring, first, second = pair

    def train(link: Link, node: int) -> None:
        for number in range(3):
            link.send(random_delta(number + 10 * node))
            assert link.allreduce(np.full(3, node, np.float32))[0] == 0.5
        link.receive()

    both(train, (first, second))
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.weights, ring.daemons[1].host.coordinates.view(np.float32))


def test_a_sum_beyond_float16_is_told_at_all_nodes_and_the_links_go_on(start_daemon: StartDaemon) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    ring = DenseRing(daemons, WEIGHTS, half=True)
    with follow(daemons[0], "dense-float16") as first, follow(daemons[1], "dense-float16") as second:
        ring.open()

        def count(link: Link, node: int) -> None:
            with pytest.raises(
                TrainerError, match="the sum of all nodes' arrays is refused: number 1 is inf"
            ):
                link.allreduce(np.array([1, 40_000], np.float32))
            assert link.allreduce(np.array([2], np.float32), "sum") == 4

        both(count, (first, second))


def test_an_array_is_waited_for_a_while_when_the_end_is_asked_for(
    alone: tuple[DenseRing, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, link = alone
    ring.daemons[0].call(ring.daemons[0].server.session.finish)
    assert link.allreduce(np.ones(3, np.float32)).tolist() == [1, 1, 1]
    ring.held.set()
    monkeypatch.setattr("p2psgd.client.dense.GRACE_S", 0.05)
    with pytest.raises(TrainerError, match="allreduce is not done: the daemon asks this trainer to end"):
        link.allreduce(np.ones(3, np.float32))


def test_an_array_has_its_name_and_shape_in_its_bucket(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    link.allreduce(np.zeros((3, 4), np.float32), "sum", name="counts")
    assert link.allreduce(np.float32(3)) == 3
    link.allreduce(np.zeros((3, 4), np.float32), name="n" * 300)
    (first,), _, (second,) = ring.buckets
    assert (first.kind, first.offset, first.count) == (ARRAY, 0, 12)
    assert (first.name, first.shape) == ("counts", "(3, 4), to be summed")
    assert (second.name, second.shape) == ("n" * 200, "(3, 4)")
