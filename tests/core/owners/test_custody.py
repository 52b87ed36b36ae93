"""What a rule keeps goes to the next owner in a new view, and when an owner leaves, dies or restarts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.core.effects import Drop
from p2psgd.core.events import CheckpointDue, FrameReceived, HandOver, NodeStopping, RuleStateBody
from p2psgd.core.owners import custody
from p2psgd.core.owners.custody import Custody
from p2psgd.core.owners.owners import Owners
from p2psgd.core.retention import Retention
from p2psgd.wire import codec
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.rule_state import RuleState, pack_rule_state
from p2psgd.wire.update import OwnUpdateMade
from tests.core.cluster import WEIGHTS, Cluster, make_words

RATE = 0.125
ADAGRAD = "owners-adagrad(epsilon=1e-10, initial=0.0)"
SPREAD = [*range(0, WEIGHTS, 7)]  # of every range
SQUARE = np.float32(32 * 2.0**-20) ** 2


def gradient(indices: list[int], *, steps: int = 1) -> OwnUpdateMade:
    words = make_words(indices)
    return OwnUpdateMade(steps, 32, codec.encode(words, WEIGHTS), words, RATE)


def owners_of(cluster: Cluster, number: int) -> Owners:
    owners = cluster.replica(number).owners
    assert owners is not None
    return owners


def custody_of(cluster: Cluster, number: int) -> Custody:
    kept = owners_of(cluster, number).custody
    assert kept is not None
    return kept


def squares(cluster: Cluster) -> NDArray[np.float32]:
    """The sums of squares of all owners alive, (P,); each weight has one owner."""
    whole = np.full(WEIGHTS, np.nan, np.float32)
    for replica in cluster.alive():
        assert replica.owners is not None
        rule = replica.owners.aggregator.rule
        assert rule is not None
        assert rule.state.range == replica.owners.aggregator.range
        begin, end = rule.state.range
        assert np.isnan(whole[begin:end]).all()
        whole[begin:end] = rule.state.arrays["squares"]
    assert not np.isnan(whole).any()
    return whole


def trained(clusters: Callable[..., Cluster], size: int) -> Cluster:
    """Each node has contributed two gradients of the same weights."""
    cluster = clusters(size, mode=ADAGRAD)
    if size > 1:
        cluster.found()
    else:
        cluster.tick(3.0)
    for step in (1, 2):
        for number in range(size):
            cluster.give(number, gradient(SPREAD, steps=step))
        cluster.settle()
        cluster.tick(0.5)
    return cluster


def wanted(times: int) -> NDArray[np.float32]:
    whole = np.zeros(WEIGHTS, np.float32)
    whole[SPREAD] = times * SQUARE
    return whole


def test_gradients_change_the_weights_when_owners_have_made_changes_of_them(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(2, mode=ADAGRAD)
    cluster.found()
    before = cluster.replica(0).lattice.coordinates.copy()
    cluster.give(0, gradient([5, 4000]))
    assert (cluster.replica(0).trainer_weights() == before).all()
    cluster.settle()
    cluster.tick(0.5)
    changes = cluster.replica(0).lattice.coordinates - before
    assert changes.nonzero()[0].tolist() == [5, 4000]
    assert changes[[5, 4000]].tolist() == [-RATE * 2**20] * 2  # the first step of Adagrad is the rate
    assert (cluster.replica(1).lattice.coordinates - before == changes).all()
    assert owners_of(cluster, 0).waiting == 0


def test_each_square_is_kept_once_by_the_owner_of_its_weight(clusters: Callable[..., Cluster]) -> None:
    cluster = trained(clusters, 3)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_the_state_of_a_killed_owner_is_its_deputys_copy(clusters: Callable[..., Cluster], dies: int) -> None:
    cluster = trained(clusters, 3)
    cluster.tick(3.0)  # a copy is whole
    cluster.kill(dies)
    cluster.tick(30.0)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


def test_what_was_not_copied_before_an_owner_died_begins_at_zero(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custody, "COPY_S", 1e9)
    cluster = trained(clusters, 3)
    range_of_1 = owners_of(cluster, 1).aggregator.range
    cluster.kill(1)
    cluster.tick(30.0)
    left = wanted(6)
    left[slice(*range_of_1)] = 0
    np.testing.assert_allclose(squares(cluster), left, rtol=1e-6)


def test_an_owner_that_leaves_gives_its_state_to_the_others(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = trained(clusters, 3)
    monkeypatch.setattr(custody, "COPY_S", 1e9)
    cluster.give(2, HandOver())
    cluster.settle()
    assert not owners_of(cluster, 2).waits_to_leave
    cluster.give(2, NodeStopping("test"))
    cluster.settle()
    cluster.kill(2)
    cluster.tick(30.0)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


def test_a_new_owner_is_given_the_state_of_its_range(clusters: Callable[..., Cluster]) -> None:
    cluster = trained(clusters, 3)
    cluster.tick(3.0)
    cluster.kill(2)
    cluster.tick(30.0)
    cluster.boot(2)
    cluster.link_all()
    cluster.tick(30.0)
    assert {len(replica.view.members) for replica in cluster.alive()} == {3}
    assert owners_of(cluster, 2).aggregator.range != (0, 0)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


def test_a_run_that_starts_again_goes_on_with_the_states_of_its_checkpoints(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = trained(clusters, 3)
    for number in range(3):
        cluster.give(number, CheckpointDue())
        cluster.tick(1.0)
    for number in range(3):
        cluster.kill(number)
    for number in range(3):
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.tick(60.0)
    assert cluster.all_ready()
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


def test_a_node_that_starts_again_brings_nothing_that_the_others_have(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = trained(clusters, 3)
    for number in range(3):
        cluster.give(number, CheckpointDue())
    cluster.tick(3.0)
    cluster.kill(0)
    cluster.tick(30.0)
    cluster.boot(0, from_disk=True)
    cluster.link_all()
    cluster.tick(60.0)
    assert {len(replica.view.members) for replica in cluster.alive()} == {3}
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RuleState(0, 1, np.full((1, 4), -1, np.float32)), "a sum of squares is below 0"),
        (RuleState(WEIGHTS - 3, 1, np.zeros((1, 4), np.float32)), "4 weights from 4997 on"),
        (RuleState(0, 1, np.zeros((2, 4), np.float32)), "32 bytes for 1 arrays of 4 weights"),
        (RuleState(0, 1, np.full((1, 4), np.inf, np.float32)), "a number in it is not finite"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(
    clusters: Callable[..., Cluster], state: RuleState, words: str
) -> None:
    cluster = trained(clusters, 2)
    event = FrameReceived(cluster.replica(0).me, RuleStateBody(pack_rule_state(state)))
    drops = [each for each in cluster.give(1, event) if isinstance(each, Drop)]
    assert [each.code for each in drops] == [RejectCode.RULE_STATE]
    assert words in drops[0].details
    np.testing.assert_allclose(squares(cluster), wanted(4), rtol=1e-6)


@pytest.mark.parametrize("mode", ["async", "owners"])
def test_a_state_in_a_run_without_one_is_refused(clusters: Callable[..., Cluster], mode: str) -> None:
    cluster = clusters(2, mode=mode)
    cluster.found()
    body = pack_rule_state(RuleState(0, 1, np.zeros((1, 4), np.float32)))
    effects = cluster.give(1, FrameReceived(cluster.replica(0).me, RuleStateBody(body)))
    assert [each.code for each in effects if isinstance(each, Drop)] == [RejectCode.RULE_STATE]


def test_states_that_no_owner_takes_are_given_up_at_a_limit_which_is_noted(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = trained(clusters, 2)
    monkeypatch.setattr(custody, "WAITING_BYTES_MAX", 4000)
    cluster.cut(0, 1)
    kept = custody_of(cluster, 0)
    for begin in (4000, 4500):
        kept.give(RuleState(begin, 1, np.zeros((1, 500), np.float32)))
    assert not cluster.noted("rule")
    kept.give(RuleState(4000, 1, np.zeros((1, 300), np.float32)))
    cluster.tick(0.5)
    assert [each.range for each in kept.waiting] == [(4500, 5000), (4000, 4300)]
    assert cluster.noted("rule") == [
        (0, "the rule's state of 500 weights is given up: their owners do not take it")
    ]


def test_an_owner_that_was_silent_gets_back_what_came_meanwhile_and_nothing_twice(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = trained(clusters, 3)
    cluster.tick(3.0)
    cluster.stuck = {(2, 0), (2, 1)}
    cluster.tick(5.0)
    assert owners_of(cluster, 1).aggregator.range[1] == WEIGHTS
    for number in (0, 1):
        cluster.give(number, gradient(SPREAD, steps=3))
    cluster.tick(1.0)
    cluster.stuck.clear()
    cluster.tick(10.0)
    assert owners_of(cluster, 1).aggregator.range[1] < WEIGHTS
    np.testing.assert_allclose(squares(cluster), wanted(8), rtol=1e-6)


def test_a_run_of_one_node_goes_on_with_its_state(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(1, mode=ADAGRAD)
    cluster.tick(3.0)
    cluster.give(0, gradient(SPREAD))
    cluster.tick(0.5)
    cluster.give(0, CheckpointDue())
    cluster.tick(1.0)
    cluster.kill(0)
    cluster.boot(0, from_disk=True)
    cluster.tick(30.0)
    np.testing.assert_allclose(squares(cluster), wanted(1), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_no_owner_makes_a_step_before_it_has_what_its_checkpoint_had(
    clusters: Callable[..., Cluster], size: int
) -> None:
    """A first step of Adagrad without its sums is of the whole rate."""
    cluster = trained(clusters, size)
    for number in range(size):
        cluster.give(number, CheckpointDue())
        cluster.tick(1.0)
    for number in range(size):
        cluster.kill(number)
    for number in range(size):
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    for _ in range(100):
        cluster.tick(0.2)
        if cluster.all_ready():
            break
    before = cluster.replica(0).lattice.coordinates.copy()
    cluster.give(0, gradient(SPREAD, steps=3))
    cluster.settle()
    for _ in range(200):
        cluster.tick(0.2)
    moved = np.abs(cluster.replica(0).lattice.coordinates - before)[SPREAD]
    times = 2 * size + 1
    step = RATE / np.sqrt(times)  # and what is published of it has a magnitude on a grid
    assert (0.7 * step < moved * 2.0**-20).all()
    assert (moved * 2.0**-20 < 1.5 * step).all()


@pytest.mark.parametrize("seconds", [4.0, 70.0])
def test_a_checkpoint_before_states_are_restored_holds_them_and_so_does_a_long_wait_for_others(
    clusters: Callable[..., Cluster], seconds: float
) -> None:
    cluster = trained(clusters, 3)
    for number in range(3):
        cluster.give(number, CheckpointDue())
        cluster.tick(1.0)
    for _ in range(2):
        for number in range(3):
            cluster.kill(number)
        cluster.boot(0, from_disk=True)
        cluster.tick(seconds)
        for number in (1, 2):
            cluster.boot(number, from_disk=True)
        cluster.link_all()
        cluster.tick(4.0)
        for number in range(3):
            cluster.give(number, CheckpointDue())
            cluster.tick(0.5)
    cluster.tick(60.0)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


@pytest.mark.parametrize("seconds", [0.0, 3.0, 12.0])
def test_a_state_is_in_a_last_checkpoint_when_all_stop_at_once(
    clusters: Callable[..., Cluster], seconds: float
) -> None:
    cluster = trained(clusters, 3)
    for event in (HandOver(), NodeStopping("test"), CheckpointDue()):
        for number in range(3):
            cluster.give(number, event)
        cluster.settle()
        cluster.tick(seconds)
    for number in range(3):
        cluster.kill(number)
    for number in range(3):
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.tick(60.0)
    np.testing.assert_allclose(squares(cluster), wanted(6), rtol=1e-6)


def test_a_copy_waits_for_a_range_that_cannot_move_yet(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = trained(clusters, 3)
    cluster.tick(3.0)
    with monkeypatch.context() as patch:
        patch.setattr(Retention, "stalled", property(lambda self: True))  # the logs are full
        for number in (0, 1):
            cluster.give(number, gradient(SPREAD, steps=3))
        cluster.settle()
        cluster.kill(2)
        cluster.tick(30.0)
    cluster.tick(10.0)
    np.testing.assert_allclose(squares(cluster), wanted(8), rtol=1e-6)
