"""Links in dense rings of real control servers, whose sums are made by numpy."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc.entries import ARRAY, CHANGES
from p2psgd.ipc.layout import DENSE_NUMBERS_MIN
from p2psgd.trainer.buckets import BUCKET_NUMBERS
from p2psgd.trainer.link import Link, attach
from tests.ipc.daemons import Daemon
from tests.ipc.rings import DenseRing

StartDaemon = Callable[..., Daemon]
INITIAL: dict[str, NDArray[np.float32]] = {
    "weight": np.full((20, 30), 0.1, np.float32),
    "bias": np.zeros(30, np.float32),
    "scale": np.array(2, np.float32),
}
WEIGHTS = 631
Vector = NDArray[np.float32]


def follow(daemon: Daemon, payload: str = "dense") -> Link:
    return attach(INITIAL, mode="ring", payload=payload, control=daemon.path)


@pytest.fixture
def pair(start_daemon: StartDaemon) -> Iterator[tuple[DenseRing, Link, Link]]:
    """Two nodes whose first round is open."""
    daemons = [start_daemon(1), start_daemon(2)]
    ring = DenseRing(daemons, WEIGHTS)
    with follow(daemons[0]) as first, follow(daemons[1]) as second:
        ring.open()
        yield ring, first, second


def both(work: Callable[[Link, int], object], links: tuple[Link, Link]) -> None:
    """Do the same with both links at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, links, (0, 1)))


def random_delta(seed: int, size: int = WEIGHTS) -> Vector:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def test_the_weights_are_any_float32_numbers_and_change_by_the_mean(
    pair: tuple[DenseRing, Link, Link],
) -> None:
    ring, first, second = pair
    before = first.weights.copy()
    np.testing.assert_array_equal(first.tensors["weight"], INITIAL["weight"])
    deltas = [random_delta(1), random_delta(2)]

    def train(link: Link, node: int) -> None:
        assert link.receive() == 0
        assert link.send(deltas[node]) == WEIGHTS
        assert link.receive() == 2
        assert link.receive() == 0

    both(train, (first, second))
    expected = before + (deltas[0] + deltas[1]) * np.float32(0.5)
    np.testing.assert_array_equal(first.weights, expected)
    np.testing.assert_array_equal(second.weights, expected)
    np.testing.assert_array_equal(ring.daemons[0].host.coordinates.view(np.float32), expected)
    assert first.mini_batches == 1
    assert first.sent == {"weight": 600, "bias": 30, "scale": 1}


def test_tensors_are_begun_as_they_are_whole_and_waited_for_together(
    pair: tuple[DenseRing, Link, Link],
) -> None:
    ring, first, second = pair
    before = first.weights.copy()

    def train(link: Link, node: int) -> None:
        for _ in range(3):
            for name in ("scale", "bias"):
                link.proposed[name][...] = node + 1
                link.allreduce_begin(name)
            link.proposed["weight"][:] = node
            link.allreduce_begin("weight")
            assert link.allreduce_wait() == 2

    both(train, (first, second))
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.tensors["bias"], np.full(30, 4.5, np.float32))
    np.testing.assert_array_equal(first.weights[:600], before[:600] + np.float32(1.5))
    assert ring.rounds == first.mini_batches == 3
    for buckets in ring.buckets:
        assert sorted((bucket.kind, bucket.offset, bucket.count) for bucket in buckets) == [
            (CHANGES, 0, WEIGHTS)
        ]


def test_large_tensors_are_given_at_once_and_cut(start_daemon: StartDaemon) -> None:
    sizes = {"small": 10, "large": 2 * BUCKET_NUMBERS + 1, "last": 5}
    daemon = start_daemon(1)
    weights = sum(sizes.values())
    ring = DenseRing([daemon], weights)
    initial = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    with attach(initial, mode="ring", payload="dense", control=daemon.path) as link:
        ring.open()
        link.proposed["large"][:] = 1
        link.allreduce_begin("large")
        daemon.until(lambda: len(daemon.host.shares) == 3, "the large tensor's buckets")
        link.allreduce_begin("last")
        link.allreduce_begin("small")  # the last one: the share is whole
        assert link.allreduce_wait() == 1
        assert link.weights[10] == 1
    (buckets,) = ring.buckets
    assert [(bucket.name, bucket.shape) for bucket in buckets[2:]] == [
        ("large", f"({sizes['large']},)"),
        ("small", "(10,)"),
        ("last", "(5,)"),
    ]
    assert sum(bucket.count for bucket in buckets) == weights


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
    assert first.mini_batches == 0


def test_an_array_in_the_links_memory_is_summed_where_it_is(pair: tuple[DenseRing, Link, Link]) -> None:
    _, first, second = pair

    def reduce(link: Link, _: int) -> None:
        array = link.array(2, 3)
        array[:] = [[1, 2, 3], [4, 5, 6]]
        assert link.allreduce(array, "sum").tolist() == [[2, 4, 6], [8, 10, 12]]
        assert link.allreduce(array[1], "sum").tolist() == [8, 10, 12]
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


@pytest.fixture
def alone(daemon: Daemon) -> Iterator[tuple[DenseRing, Link]]:
    ring = DenseRing([daemon], WEIGHTS)
    with follow(daemon) as link:
        ring.open()
        link.receive()
        yield ring, link


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_and_change_nothing(
    alone: tuple[DenseRing, Link], bad: float
) -> None:
    ring, link = alone
    link.proposed["bias"][:] = 3
    delta = random_delta(1)
    delta[17] = bad
    with pytest.raises(
        TrainerError, match=rf"delta of tensor 'weight' is refused: number 17 is {bad:g}, not"
    ):
        link.send(delta)
    delta[603] = bad
    words = (
        rf"delta of tensor 'bias' is refused: number 3 is {bad:g}, not finite: lower the learning rate or "
    )
    with pytest.raises(TrainerError, match=words):
        link.send(np.where(np.arange(WEIGHTS) == 17, np.float32(0), delta))
    assert (link.proposed["bias"] == 3).all()
    link.proposed["weight"][:] = bad
    with pytest.raises(
        TrainerError, match=r"proposed\['weight'\] is refused: number 0 .*: lower the learning rate or look"
    ):
        link.allreduce_begin("weight")
    assert (link.mini_batches, ring.rounds, ring.daemons[0].host.shares) == (0, 0, [])
    assert link.send(random_delta(2)) == WEIGHTS
    assert link.receive() == 1


def test_with_float16_on_the_wire_its_range_is_the_limit(daemon: Daemon) -> None:
    ring = DenseRing([daemon], WEIGHTS)
    with follow(daemon, "dense-float16") as link:
        ring.open()
        delta = random_delta(1)
        delta[3] = 65_520
        with pytest.raises(TrainerError, match="number 3 is 65520, not finite, or beyond what float16 holds"):
            link.send(delta)
        delta[3] = -65_504
        assert link.send(delta) == WEIGHTS


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


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("step 3 is refused: in a dense ring", lambda link: link.send(random_delta(1), 3)),
        ("delta must be a numpy array", lambda link: link.send(np.zeros(5, np.float32))),
        (
            "there is no tensor 'wieght'; the tensors are 'weight', 'bias'",
            lambda link: link.allreduce_begin("wieght"),
        ),
        ("op is 'mean' or 'sum', not 'max'", lambda link: link.allreduce(np.zeros(3, np.float32), "max")),
        ("it is float64", lambda link: link.allreduce(np.zeros(3))),
        ("it is float16", lambda link: link.allreduce(np.float16(1))),
        ("it is list", lambda link: link.allreduce([1.0])),
        ('skip is for a run in ring mode with payload = "sparse"', lambda link: link.skip()),
    ],
)
def test_wrong_use_says_what_is_wrong_and_gives_nothing(
    alone: tuple[DenseRing, Link], words: str, call: Callable[[Link], object]
) -> None:
    ring, link = alone
    with pytest.raises(TrainerError, match=words):
        call(link)
    assert ring.daemons[0].host.shares == []
    assert link.mini_batches == 0


def test_a_share_that_is_begun_must_be_ended_before_anything_else(alone: tuple[DenseRing, Link]) -> None:
    _, link = alone
    link.allreduce_begin("bias")
    for call in (
        lambda: link.allreduce_begin("bias"),
        lambda: link.send(random_delta(1)),
        lambda: link.allreduce(np.zeros(3, np.float32)),
    ):
        with pytest.raises(TrainerError, match=r"begun already: end .* with allreduce_wait\(\)"):
            call()
    link.allreduce_begin("weight")
    link.allreduce_begin("scale")
    assert link.allreduce_wait() == 1


def test_tensors_that_are_not_begun_are_named_and_can_still_be_begun(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    before = link.weights.copy()
    with pytest.raises(
        TrainerError, match=r"tensors 'weight', 'bias', 'scale' have not been begun in this round: write link"
    ):
        link.allreduce_wait()
    for name in ("weight", "scale"):
        link.proposed[name][...] = 1
        link.allreduce_begin(name)
    words = (
        "tensor 'bias' has not been begun in this round: write link.proposed['bias'] and call"
        " allreduce_begin('bias') for every tensor before allreduce_wait()"
    )
    for _ in range(2):
        with pytest.raises(TrainerError, match=f"^{re.escape(words)}$"):
            link.allreduce_wait()
    assert (ring.rounds, link.mini_batches) == (0, 0)
    link.proposed["bias"][:] = 1
    link.allreduce_begin("bias")
    assert link.allreduce_wait() == 1
    np.testing.assert_array_equal(link.weights, before + np.float32(1))
    assert ring.rounds == link.mini_batches == 1
    with pytest.raises(TrainerError, match="have not been begun in this round"):
        link.allreduce_wait()  # the round before is no round to wait for once more


def test_of_many_tensors_that_are_not_begun_some_are_named(daemon: Daemon) -> None:
    ring = DenseRing([daemon], 10)
    initial = {f"t{number}": np.zeros(1, np.float32) for number in range(10)}
    with attach(initial, mode="ring", payload="dense", control=daemon.path) as link:
        ring.open()
        with pytest.raises(TrainerError, match=r"tensors 't0', .*, 't7' and 2 more have not been begun"):
            link.allreduce_wait()


def test_a_trainer_that_is_asked_to_end_does_not_hang_in_a_round(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    ring.held.set()
    before = link.weights.copy()
    for name in link.proposed:
        link.allreduce_begin(name)
    threading.Timer(0.02, lambda: ring.daemons[0].call(ring.daemons[0].server.finish)).start()
    assert link.allreduce_wait() == 0
    assert link.stopping
    link.allreduce_begin("bias")
    assert link.allreduce_wait() == 0
    np.testing.assert_array_equal(link.weights, before)


def test_an_array_is_waited_for_a_while_when_the_end_is_asked_for(
    alone: tuple[DenseRing, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, link = alone
    ring.daemons[0].call(ring.daemons[0].server.finish)
    assert link.allreduce(np.ones(3, np.float32)).tolist() == [1, 1, 1]
    ring.held.set()
    monkeypatch.setattr("p2psgd.trainer.dense_rounds.GRACE_S", 0.05)
    with pytest.raises(TrainerError, match="allreduce is not done: the daemon asks this trainer to end"):
        link.allreduce(np.ones(3, np.float32))


def test_weights_that_were_replaced_are_taken_instead_of_sums(
    alone: tuple[DenseRing, Link],
) -> None:
    ring, link = alone
    daemon = ring.daemons[0]
    link.send(random_delta(1))
    daemon.until(lambda: ring.rounds == 1, "the round")

    def replace() -> None:
        daemon.host.coordinates.view(np.float32)[:] = 7
        daemon.server.replica_replaced()

    daemon.call(replace)
    link.receive()
    assert (link.weights == 7).all()
    link.send(np.ones(WEIGHTS, np.float32))
    link.receive()
    assert (link.weights == 8).all()


def test_the_state_that_is_kept_has_no_residual(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    daemon = ring.daemons[0]
    link.keep(lambda: {"n": link.mini_batches})
    link.send(random_delta(1))
    daemon.call(daemon.server.request_state)
    link.receive()
    daemon.until(lambda: bool(daemon.host.states), "a state")
    assert daemon.host.states[0].residual is None
    assert daemon.host.states[0].script == {"n": 1}


def test_the_next_trainer_finds_a_share_that_was_given_whole(daemon: Daemon) -> None:
    ring = DenseRing([daemon], WEIGHTS)
    ring.held.set()
    with follow(daemon) as link:
        ring.open()
        before = link.weights.copy()
        link.send(np.ones(WEIGHTS, np.float32))
    daemon.until(lambda: bool(daemon.host.shares), "a share")
    with follow(daemon) as link:
        ring.held.clear()
        daemon.call(ring.look)
        link.receive()
        np.testing.assert_array_equal(link.weights, before + 1)
        assert link.mini_batches == 1
        link.send(np.ones(WEIGHTS, np.float32))
        assert link.receive() == 1
        np.testing.assert_array_equal(link.weights, daemon.host.coordinates.view(np.float32))


def test_an_array_has_its_name_and_shape_in_its_bucket(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    link.allreduce(np.zeros((3, 4), np.float32), "sum", name="counts")
    assert link.allreduce(np.float32(3)) == 3
    link.allreduce(np.zeros((3, 4), np.float32), name="n" * 300)
    (first,), _, (second,) = ring.buckets
    assert (first.kind, first.offset, first.count) == (ARRAY, 0, 12)
    assert (first.name, first.shape) == ("counts", "(3, 4), to be summed")
    assert (second.name, second.shape) == ("n" * 200, "(3, 4)")


def test_what_is_proposed_is_written_where_the_daemon_reads_it(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    link.proposed["bias"][3] = 4
    assert ring.segments[0].shares[603] == 4
    with pytest.raises(TypeError):
        link.proposed["bias"] = np.zeros(30, np.float32)  # type: ignore[index]
    assert not link._memory.sums.flags.writeable
