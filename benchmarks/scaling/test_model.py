"""The arithmetic of a prediction, beside the codec's and the protocol's own bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scaling import model
from benchmarks.scaling.model import DENSE_TENSORS, Part, Setting, Way, predict
from p2psgd.base.errors import UsageError
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import (
    FrontierRow,
    Status,
    pack_frontier,
    pack_message,
)
from p2psgd.wire.update import UpdateHeader, pack_update

PAPER = Setting(weights=14_600_000, nodes=8, link_bit_per_s=1e9, computing_s=0.15, density=1 / 850)


@pytest.mark.parametrize("density", [1 / 5000, 1 / 850, 1 / 100, 1 / 20, 0.25])
def test_an_update_is_as_long_as_predicted(density: float) -> None:
    weights = 1_000_000
    chance = np.random.default_rng(7)
    indices = np.flatnonzero(chance.random(weights) < density).astype(np.uint32)
    words = (indices << 1 | chance.integers(0, 2, len(indices))).astype(np.uint32)
    header = UpdateHeader(1, 1, 1, 0, 1, 16, len(words))
    frame = pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, weights)))
    assert model.update_bytes(weights, len(words)) == pytest.approx(len(frame), rel=0.01)


def test_a_dense_form_is_taken_where_it_is_shorter() -> None:
    words = np.arange(0, 2000, 2, dtype=np.uint32)
    header = UpdateHeader(1, 1, 1, 0, 1, 16, len(words))
    frame = pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, 1000)))
    assert len(frame) <= model.update_bytes(1000, 1000) == 5 + 64 + 201


@pytest.mark.parametrize("count", [2, 30])
def test_a_status_is_as_long_as_predicted(count: int) -> None:
    """Take nodes whose counts have grown."""
    nodes = range(1, count + 1)
    big = 2**40
    rows = [FrontierRow(node, big, big, big, big, big, big, big) for node in nodes]
    status = Status(
        frontier=pack_frontier(rows),
        view=30,
        cluster_id=2**63,
        ready=True,
        confirmed=b"",  # as in the one before
        whole=False,
        evict_requests=b"",
        loss=3,
        steps=0,
        ring=b"",
    )
    assert model.bytes_of_status(count) == pytest.approx(len(pack_message(status)), abs=4)


def test_what_overlaps_is_the_longest_part_and_what_does_not_is_the_sum() -> None:
    overlapping, in_turn = (predict(way, PAPER) for way in (Way.ASYNC, Way.SPARSE_RING))
    assert overlapping.step_s == max(overlapping.parts.values())
    assert in_turn.step_s == sum(in_turn.parts.values())
    assert overlapping.bottleneck is in_turn.bottleneck is Part.COMPUTING
    assert overlapping.steps_per_s == 8 / overlapping.step_s
    assert overlapping.samples_per_s == 256 * overlapping.steps_per_s


def test_a_narrow_link_is_full_of_what_is_sent() -> None:
    """7 updates of some 26 kB for each step, and nothing else."""
    narrow = predict(Way.ASYNC, replace(PAPER, link_bit_per_s=1e6, failure_timeout_s=600.0))
    assert narrow.bottleneck is Part.NETWORK
    assert narrow.link_share == pytest.approx(1)
    assert narrow.sent_bytes == pytest.approx(7 * model.update_bytes(14_600_000, 17_176), rel=0.01)
    assert narrow.step_s == pytest.approx(8 * 1.07 * narrow.sent_bytes / 1e6, rel=0.01)


def test_a_dense_ring_moves_twice_the_gradient_less_an_nth_while_it_is_computed() -> None:
    """4 x 14.6 MB; two thirds of the computing hide as much of it."""
    dense = predict(Way.DENSE_RING, PAPER)
    assert dense.sent_bytes == pytest.approx(2 * 7 / 8 * 4 * 14.6e6, rel=1e-3)
    around_s = 8 * dense.sent_bytes * (1 + 66 / 1448) / 1e9
    assert dense.parts[Part.NETWORK] == pytest.approx(around_s - 0.15 * (1 - 1 / DENSE_TENSORS), rel=0.01)


@pytest.mark.parametrize("way", list(Way))
def test_communication_binds_from_just_that_number_of_nodes_on(way: Way) -> None:
    slow = replace(PAPER, link_bit_per_s=20e6)
    if way is Way.DENSE_RING:
        slow = replace(PAPER, computing_s=0.55)
    binds_from = predict(way, slow).binds_from
    assert binds_from is not None
    nodes, part = binds_from
    assert nodes > 2
    assert part is Part.NETWORK
    assert predict(way, replace(slow, nodes=nodes)).bottleneck is Part.NETWORK
    assert predict(way, replace(slow, nodes=nodes - 1)).bottleneck is Part.COMPUTING


def test_on_fast_links_a_daemon_has_enough_to_do_in_time() -> None:
    found = predict(Way.ASYNC, PAPER).binds_from
    assert found is not None
    assert found[1] is Part.DAEMON


@pytest.mark.parametrize("way", list(Way))
def test_one_node_waits_for_nobody(way: Way) -> None:
    one = predict(way, replace(PAPER, nodes=1))
    assert one.sent_bytes == one.link_share == 0
    assert one.speed_up == pytest.approx(1, rel=0.3)


def test_fewer_processors_are_felt_once_they_are_busy() -> None:
    busy = predict(Way.ASYNC, replace(PAPER, cores=0.1))
    assert busy.bottleneck is Part.PROCESSORS
    assert busy.step_s > predict(Way.ASYNC, PAPER).step_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 1025}, "1,025 nodes cannot be"),
        ({"computing_s": 0.0}, "a time for a mini-batch of 0"),
        ({"density": 1.5}, "density of 1.5 is no part"),
        ({"density": 0.1}, "a step sends at most 912,500: give a density of at most 1/16"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(PAPER, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "link_bit_per_s", "words"),
    [
        (200, 1e6, "200 nodes the network has no room for updates beside .* give more bandwidth, or"),
        (1024, 1e12, "1,024 nodes the daemon has no room for updates beside .* give fewer nodes, or"),
    ],
)
def test_what_has_too_much_to_do_with_signs_of_life_is_told(
    nodes: int, link_bit_per_s: float, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        predict(Way.ASYNC, replace(PAPER, nodes=nodes, link_bit_per_s=link_bit_per_s))
