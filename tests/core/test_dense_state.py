"""A replica of float32 weights that rounds change as a whole: copies, scrub, snapshots, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.core.effects import Reload
from p2psgd.core.events import CheckpointDue, FrameReceived, PeerStatus, TimePassed, UpdateBody
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.chunks import NextWeights
from p2psgd.core.ring.reduce import NUMBERS_MIN
from p2psgd.core.scrub import SCRUB_TICKS, SliceScanner
from p2psgd.core.snapshot_install import name_differences
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import pack_update
from tests.core.cluster import WEIGHTS, Cluster, initial_coordinates, make_spec, sample_update

ME = Origin(1, 1)
HUGE = np.float32(-3e38)  # whose bits are far beyond any coordinate of the lattice
SPEC = make_spec(mode="ring-dense")


def changes(number: int) -> NDArray[np.float32]:
    result = np.full(WEIGHTS, number, np.float32) * np.linspace(-1, 1, WEIGHTS, dtype=np.float32)
    result[0] = HUGE if number == 1 else 0
    return result


def complete_round(state: State, next_weights: NextWeights, number: int, *, view: int = 1) -> None:
    next_weights.begin()
    for start in range(0, WEIGHTS, 700):
        next_weights.take(start, changes(number)[start : start + 700], 2)
    next_weights.complete(view=view, number=number)


def weights_after(number: int) -> NDArray[np.float32]:
    weights = initial_coordinates().view(np.float32).copy()
    for each in range(1, number + 1):
        weights = weights + changes(each) * np.float32(0.5)
    return weights


class Setting:
    """A state and its rounds."""

    def __init__(self) -> None:
        self.state = State(SPEC, ME, initial_coordinates(), UpdateLog(budget_bytes=1 << 20))
        self.scanner = SliceScanner(self.state, Timing(5.0), 0.0)
        self.next_weights = NextWeights(self.state)
        self.number = 0

    def complete(self) -> None:
        self.number += 1
        complete_round(self.state, self.next_weights, self.number)

    def weights(self) -> NDArray[np.float32]:
        return self.state.lattice.coordinates.view(np.float32)


def test_a_round_swaps_the_weights_and_is_one_row() -> None:
    setting = Setting()
    initial = setting.state.lattice.initial_digest
    for number in range(1, 4):
        setting.complete()
        lattice = setting.state.lattice
        assert setting.weights().tobytes() == weights_after(number).tobytes()
        assert lattice.digest == lattice.recompute_digest()
        assert lattice.magnitude_max == 0
        sequence, digest = 1 << 32 | number, (lattice.digest - initial) % 2**64
        assert setting.state.frontier.rows() == [FrontierRow(0, 0, sequence, digest, steps=number)]
        assert setting.state.frontier.round == number
        assert setting.state.log.trimmed_to(RING) == setting.state.log.last(RING) == sequence
        assert setting.state.fits(setting.state.frontier.rows(), lattice.digest)
        assert setting.state.lost_by({}) == 0


def test_a_later_view_comes_after_an_earlier_one_and_rounds_go_on_where_views_are_counted_anew() -> None:
    setting = Setting()
    complete_round(setting.state, setting.next_weights, 7, view=9)
    assert setting.state.frontier.sequence(RING) == 9 << 32 | 7
    complete_round(setting.state, setting.next_weights, 6, view=10)
    assert setting.state.frontier.sequence(RING) == 10 << 32 | 6
    complete_round(setting.state, setting.next_weights, 7, view=1)
    assert setting.state.frontier.sequence(RING) == (10 << 32 | 6) + 1


@pytest.mark.usefixtures("small_pieces")
def test_a_copy_under_way_is_of_the_round_in_which_it_began() -> None:
    for before, between in ((0, 1), (2, 1), (3, 4)):
        setting = Setting()
        for _ in range(2):
            setting.complete()
        copies: list[tuple[NDArray[np.int32], list[FrontierRow]]] = []
        setting.scanner.begin_copy(lambda *copy, into=copies: into.append(copy))
        for _ in range(before):
            setting.scanner.turn()
        for _ in range(between):
            setting.complete()
        while setting.scanner.copying:
            setting.scanner.turn()
            setting.complete()
        [(coordinates, rows)] = copies
        assert coordinates.tobytes() == weights_after(2).tobytes()
        assert [row.steps for row in rows] == [2]
        assert codec.digest_coordinates(coordinates, SPEC.key) == setting.state.digest_of(rows)
        assert setting.weights().tobytes() == weights_after(setting.number).tobytes()


def test_a_scrub_goes_on_over_rounds_and_finds_what_memory_has_lost() -> None:
    for hurt in (None, 0, 4990):
        setting = Setting()
        setting.complete()
        old = setting.state.lattice.coordinates
        results = []
        for tick in range(SCRUB_TICKS):
            if tick == 20 and hurt is not None:
                old[hurt] ^= 1
            results.append(setting.scanner.tick(60 + 0.2 * tick))
            if tick % 3 == 1:
                setting.complete()
        assert results == [None] * (SCRUB_TICKS - 1) + [hurt != 4990]
        assert setting.weights().tobytes() == weights_after(setting.number).tobytes()


def test_memory_of_former_weights_is_used_again_but_not_while_it_is_read() -> None:
    setting = Setting()
    arrays = set()
    for _ in range(10):
        setting.complete()
        arrays.add(id(setting.state.lattice.coordinates))
    assert len(arrays) == 2
    read = setting.state.lattice.coordinates
    setting.scanner.begin_copy(lambda *_: None)
    for _ in range(5):
        setting.complete()
        assert setting.state.lattice.coordinates is not read
        assert setting.state.is_reading(read)


def test_the_digest_of_the_weights_before_is_looked_at() -> None:
    setting = Setting()
    replica = Replica(SPEC, me=ME, coordinates=initial_coordinates())
    next_weights = NextWeights(replica.state)
    next_weights.take(0, changes(1), 1)
    assert next_weights.is_sound(replica.scanner, replica.out, 5.0)
    replica.lattice.coordinates[9] ^= 1
    next_weights.begin()
    next_weights.take(0, changes(1), 1)
    assert not next_weights.is_sound(replica.scanner, replica.out, 5.0)
    assert replica.scanner.scrub_due == 5.0
    assert len(setting.weights()) < NUMBERS_MIN


# -- several nodes


class Rounds:
    """A dense run whose rounds are completed by hand, at the nodes named."""

    def __init__(self, size: int) -> None:
        self.cluster = Cluster(size, mode="ring-dense")
        self.makers = {number: self.maker(number) for number in range(size)}
        self.cluster.found()

    def maker(self, number: int) -> NextWeights:
        return NextWeights(self.cluster.replica(number).state)

    def complete(self, number: int, nodes: list[int], *, view: int = 1) -> None:
        for node in nodes:
            complete_round(self.cluster.replica(node).state, self.makers[node], number, view=view)

    def weights(self, node: int) -> bytes:
        return self.cluster.replica(node).lattice.coordinates.tobytes()

    def check(self) -> None:
        self.cluster.assert_converged()
        assert not self.cluster.drops
        assert not self.cluster.halts


@pytest.mark.usefixtures("small_pieces")
def test_a_member_that_is_behind_takes_a_snapshot_after_a_failure_timeout() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    rounds.cluster.tick(3.0)
    rounds.complete(2, [0, 1])
    rounds.complete(3, [0, 1])
    rounds.cluster.tick(4.0)
    assert rounds.cluster.replica(2).frontier.round == 1  # it may still be given the result
    rounds.cluster.tick(10.0)
    rounds.check()
    assert rounds.cluster.noted("snapshot taken")
    assert rounds.weights(2) == weights_after(3).tobytes()
    assert rounds.cluster.replica(2).log.trimmed_to(RING) == 1 << 32 | 3


@pytest.mark.usefixtures("small_pieces")
def test_a_newcomer_takes_one_at_once() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    rounds.cluster.kill(2)
    rounds.complete(2, [0, 1])
    rounds.cluster.tick(1.0)
    rounds.cluster.boot(2)
    rounds.cluster.link_all()
    rounds.cluster.tick(10.0)
    rounds.check()
    assert rounds.cluster.all_ready()
    assert rounds.weights(2) == weights_after(2).tobytes()


@pytest.mark.usefixtures("small_pieces")
def test_a_round_that_others_did_again_is_given_up() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    rounds.complete(2, [2])  # nobody else has it, and they go on without node 2
    rounds.complete(2, [0, 1], view=2)
    rounds.cluster.tick(15.0)
    rounds.check()
    assert rounds.cluster.noted("given up") == [
        (2, "round 2 as completed here is discarded: the others repeated it without this node")
    ]
    assert [row.sequence for row in rounds.cluster.replica(2).frontier.rows()] == [2 << 32 | 2]


@pytest.mark.usefixtures("small_pieces")
def test_a_snapshot_that_a_round_has_overtaken_is_not_taken() -> None:
    rounds = Rounds(2)
    rounds.complete(1, [0])
    cluster = rounds.cluster
    cluster.stuck.add((0, 1))
    cluster.tick(0.5)
    cluster.stuck.clear()
    late = cluster.replica(1)
    while late.fetch.taking.intake is None:
        cluster.now += 0.5
        cluster.give(1, TimePassed())
        cluster.give(0, TimePassed())
        for _ in range(5):
            cluster.deliver(0, 1)
            cluster.deliver(1, 0)
    rounds.complete(1, [1])
    rounds.complete(2, [0, 1])
    cluster.tick(3.0)
    rounds.check()
    assert not cluster.noted("snapshot taken")
    assert late.frontier.round == 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rounds_since", [0, 1])
def test_a_run_comes_back_from_its_checkpoints(rounds_since: int) -> None:
    rounds = Rounds(2)
    rounds.complete(1, [0, 1])
    for node in range(2):
        rounds.cluster.give(node, CheckpointDue())
    assert rounds.cluster.replica(0).saved == {RING: 1 << 32 | 1}
    if rounds_since:
        rounds.complete(2, [0, 1])
        rounds.cluster.give(1, CheckpointDue())
    for node in range(2):
        rounds.cluster.kill(node)
    for node in range(2):
        rounds.cluster.boot(node, from_disk=True)
    assert rounds.cluster.replica(0).frontier.round == 1
    assert rounds.cluster.replica(0).log.trimmed_to(RING) == 1 << 32 | 1
    rounds.cluster.link_all()
    rounds.cluster.tick(15.0)
    rounds.check()
    assert rounds.weights(0) == weights_after(1 + rounds_since).tobytes()
    assert (
        rounds.cluster.replica(0).lattice.initial_digest == rounds.cluster.replica(1).lattice.initial_digest
    )


# -- damage


def hurt_and_find(cluster: Cluster, place: int = 4000) -> None:
    replica = cluster.replica(0)
    replica.lattice.coordinates[place] ^= 1 << 30
    replica.scanner.scrub_due = cluster.now
    for _ in range(70):
        cluster.now += 0.1
        cluster.give(0, TimePassed())
    cluster.settle()


def test_a_node_mends_itself_from_a_checkpoint_of_this_round() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    rounds.cluster.give(0, CheckpointDue())
    hurt_and_find(rounds.cluster)
    rounds.check()
    [(_, words)] = rounds.cluster.noted("mended")
    right = weights_after(1)[4000]
    wrong = np.array([right]).view(np.int32) ^ (1 << 30)
    assert words == (
        "the weights were rebuilt from the last checkpoint and 0 updates since: "
        f"output[0] was {wrong.view(np.float32)[0]:g} instead of {right:g}"
    )
    assert not rounds.cluster.noted("snapshot taken")
    assert rounds.cluster.replica(0).ready
    assert rounds.cluster.replica(0).lattice.magnitude_max == 0


@pytest.mark.usefixtures("small_pieces")
def test_with_an_older_checkpoint_it_takes_a_snapshot() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    rounds.cluster.give(0, CheckpointDue())
    rounds.complete(2, [0, 1, 2])
    hurt_and_find(rounds.cluster)
    rounds.cluster.tick(10.0)
    rounds.check()
    assert (
        0,
        "the weights cannot be rebuilt from the checkpoint and the log: "
        "it is of round 1, this node of 2, and a dense ring has no log",
    ) in rounds.cluster.noted("quarantine")
    [(_, words)] = rounds.cluster.noted("mended")
    assert words.startswith("output[0] was ")
    assert f"instead of {weights_after(2)[4000]:g}" in words
    assert rounds.weights(0) == weights_after(2).tobytes()


@pytest.mark.usefixtures("small_pieces")
def test_what_was_wrong_cannot_be_told_of_another_round() -> None:
    rounds = Rounds(3)
    rounds.complete(1, [0, 1, 2])
    cluster = rounds.cluster
    cluster.stuck |= {(0, 1), (0, 2), (1, 0), (2, 0)}
    hurt_and_find(cluster)
    rounds.complete(2, [1, 2])
    cluster.stuck.clear()
    cluster.tick(10.0)
    rounds.check()
    assert cluster.noted("mended") == [
        (0, "which weights were wrong cannot be told: a dense ring keeps no updates to compare them by")
    ]


def test_a_quarantined_node_takes_a_lower_snapshot_too() -> None:
    rounds = Rounds(2)
    rounds.complete(1, [0, 1])
    rounds.complete(2, [0])
    rounds.cluster.give(0, CheckpointDue())
    rounds.complete(3, [0])
    rounds.cluster.stuck.add((0, 1))
    hurt_and_find(rounds.cluster)
    rounds.cluster.stuck.clear()
    rounds.cluster.tick(20.0)
    rounds.check()
    assert rounds.weights(0) == weights_after(1).tobytes()
    assert rounds.cluster.replica(0).frontier.round == 1


@pytest.mark.usefixtures("small_pieces")
def test_a_dense_ring_has_no_origin_but_the_one_of_its_rounds() -> None:
    cluster = Cluster(2, mode="ring-dense")
    cluster.link_all()
    cluster.settle()
    peer = cluster.replica(0).me
    cluster.give(1, FrameReceived(peer, PeerStatus({peer: FrontierRow(*peer, 1, 7)}, 0, 0, False, [], [], 0)))
    header, payload = sample_update(cluster)
    cluster.give(1, FrameReceived(peer, UpdateBody(pack_update(header, payload))))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.ORIGIN, RejectCode.ORIGIN]
    assert not cluster.replica(1).frontier


def test_of_several_donors_the_furthest_is_asked() -> None:
    rounds = Rounds(4)
    rounds.complete(1, [0, 1, 2, 3])
    rounds.complete(2, [0, 3])
    rounds.cluster.tick(1.0)
    hurt_and_find(rounds.cluster)
    rounds.cluster.tick(1.0)
    assert rounds.cluster.noted("snapshot taken")[0] == (0, "took a snapshot from node-3")
    assert rounds.cluster.replica(0).frontier.round == 2


def test_weights_are_named_as_they_are() -> None:
    old, new = np.array([1.5, -2.0, np.nan], np.float32), np.array([1.5, -2.25, np.inf], np.float32)
    assert name_differences(SPEC, old.view(np.int32), new.view(np.int32)) == (
        "hidden[0, 1] was -2 instead of -2.25; hidden[0, 2] was nan instead of inf"
    )


def test_a_snapshot_orders_the_trainer_to_take_the_weights_anew() -> None:
    rounds = Rounds(2)
    orders = []
    give = rounds.cluster.give
    rounds.cluster.give = lambda number, event: orders.extend(give(number, event)) or orders  # type: ignore[method-assign,func-returns-value]
    rounds.complete(1, [0])
    rounds.complete(2, [0])
    rounds.cluster.tick(15.0)
    assert any(isinstance(order, Reload) for order in orders)
