"""What a link in a dense ring refuses, and that nothing is given then."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.client.dense_links import WEIGHTS, follow, random_delta
from tests.ipc.daemons import Daemon
from tests.ipc.rings import DenseRing


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
    assert (link.steps, ring.rounds, ring.daemons[0].host.shares) == (0, 0, [])
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


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("threshold 3 is refused: in a dense ring", lambda link: link.send(random_delta(1), 3)),
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
    assert link.steps == 0


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
    assert (ring.rounds, link.steps) == (0, 0)
    link.proposed["bias"][:] = 1
    link.allreduce_begin("bias")
    assert link.allreduce_wait() == 1
    np.testing.assert_array_equal(link.weights, before + np.float32(1))
    assert ring.rounds == link.steps == 1
    with pytest.raises(TrainerError, match="have not been begun in this round"):
        link.allreduce_wait()  # the round before is no round to wait for once more


def test_of_many_tensors_that_are_not_begun_some_are_named(daemon: Daemon) -> None:
    ring = DenseRing([daemon], 10)
    initial = {f"t{number}": np.zeros(1, np.float32) for number in range(10)}
    with attach(initial, mode="ring", payload="dense", control=daemon.path) as link:
        ring.open()
        with pytest.raises(TrainerError, match=r"tensors 't0', .*, 't7' and 2 more have not been begun"):
            link.allreduce_wait()
