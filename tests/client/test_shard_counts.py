"""Shard counts beside the weights, of links to real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.cli.weights_file import export_weights
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.client.verify import DIFFERS
from p2psgd.ipc.client import ControlClient
from tests.data.lists import shard_list
from tests.ipc.daemons import QUANTUM, Daemon, StartDaemon

SHARDS = 5
INITIAL = {"in": np.full((3, 2), 0.5, np.float32), "out": np.zeros(4, np.float32)}
ONES = np.full(10, 9 * QUANTUM, np.float32)

Two = tuple[tuple[Daemon, Link], tuple[Daemon, Link]]


@pytest.fixture
def two(start_daemon: StartDaemon) -> Iterator[Two]:
    """Two nodes that hear each other, and their trainers."""
    first, second = start_daemon(1), start_daemon(2)
    first.send_to(second)
    second.send_to(first)
    options: dict[str, Any] = {"shards": shard_list(SHARDS), "label": "mine"}
    with (
        attach(INITIAL, control=first.path, **options) as one,
        attach(INITIAL, control=second.path, **options) as other,
    ):
        yield (first, one), (second, other)


def hear(daemon: Daemon, link: Link) -> list[list[int]]:
    """Taken and used as this link knows them once its daemon has all."""
    daemon.take_all()
    link.receive()
    counts: list[list[int]] = link.shard_counts.tolist()
    return counts


def test_counts_go_with_the_next_send_and_have_no_part_in_weights_deltas_and_residuals(two: Two) -> None:
    (first, one), (second, other) = two
    one.count_shard(2, held=1)
    one.count_shard(4, held=1)
    told = [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]
    assert one.shard_counts.tolist() == told
    assert hear(second, other) == [[0] * 5] * 2, "nothing was sent"
    assert one.send(ONES, 8) == 10
    first.take_all()
    second.until(lambda: bool(second.host.steps), "it hears")
    assert hear(second, other) == told
    one.count_shard(4, held=1, used=3)
    one.count_shard(4, held=-2)
    assert one.send(ONES, {"in": 8, "out": 4}) == 10
    assert one.sent == {"in": 6, "out": 4}
    one.count_shard(0, held=1)
    one.flush_shard_counts()
    one.flush_shard_counts()
    first.take_all()
    second.until(lambda: second.host.coordinates[10] == 1, "it hears")
    assert hear(second, other) == one.shard_counts.tolist() == [[1, 0, 1, 0, 0], [0, 0, 0, 0, 3]]
    assert other.steps == 0
    assert other.peer_steps == {1: 2}
    for link in (one, other):
        assert link.weights.shape == link.residual.shape == (10,)
        assert {name: tensor.shape for name, tensor in link.tensors.items()} == {"in": (3, 2), "out": (4,)}
        np.testing.assert_array_equal(link.weights, one.weights)
    np.testing.assert_array_equal(first.weights()[:10], one.weights)
    assert one.residual.tolist() == [2 * QUANTUM] * 6 + [6 * QUANTUM] * 4
    with pytest.raises(TrainerError, match=r"delta must be a numpy array \(10,\)"):
        one.send(np.zeros(20, np.float32), 8)


def test_a_shard_is_counted_as_used_before_it_is_free(two: Two) -> None:
    (first, one), _ = two
    one.count_shard(3, held=1)
    one.count_shard(1, held=-2, used=1)  # taken from a node that died, and through
    one.send(ONES, 8)
    first.take_all()
    told = [(update.words.tolist(), update.magnitude) for update in first.host.updates[1:]]
    held, used = 10, 10 + SHARDS
    assert told == [([held + 3 << 1, used + 1 << 1], 1), ([held + 1 << 1 | 1], 2)]


def test_an_interruption_counts_nothing_twice_and_forgets_nothing(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, one), (second, other) = two
    publish = one._memory.publish

    def before(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    def after(*arguments: Any, **options: Any) -> None:
        publish(*arguments, **options)
        raise KeyboardInterrupt

    for shard, interrupted in enumerate((before, after)):
        one.count_shard(shard, held=1)
        monkeypatch.setattr(one._memory, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.send(ONES, 8)
        monkeypatch.undo()
        one.receive()
        assert one.shard_counts[0, shard] == 1
    one.send(ONES, 8)
    first.take_all()
    second.until(lambda: second.host.steps == {1: 2}, "it hears")
    assert hear(second, other) == one.shard_counts.tolist() == [[1, 1, 0, 0, 0], [0] * 5]
    np.testing.assert_array_equal(first.weights()[10:], np.array([1, 1] + [0] * 8, np.float32) * QUANTUM)


def test_what_has_no_counts_says_so(two: Two, start_daemon: StartDaemon) -> None:
    one = two[0][1]
    with pytest.raises(TrainerError, match="there is no shard 5 in a run with 5"):
        one.count_shard(5, held=1)
    plain = start_daemon(3)
    with attach(INITIAL, control=plain.path) as link, pytest.raises(TrainerError, match="counts no shards"):
        _ = link.shard_counts
    with pytest.raises(TrainerError, match="shards are dealt out in async mode only"):
        attach(INITIAL, control=plain.path, shards=shard_list(2), mode="ring")
    with pytest.raises(TrainerError, match=r"shards=\.\.\. is agreed on with the initial weights"):
        attach(control=plain.path, shards=shard_list(2))
    proposal = two[0][0].host.proposal
    assert proposal is not None
    assert (proposal.weights, proposal.shards, proposal.coordinates) == (10, SHARDS, 10 + 2 * SHARDS)
    assert proposal.label == f"mine data {shard_list(SHARDS).digest}"


def test_an_export_leaves_the_counts_out(two: Two, tmp_path: Path) -> None:
    daemon, link = two[0]
    link.count_shard(2, used=1)
    link.send(ONES, 8)
    daemon.take_all()
    with ControlClient(daemon.path) as client:
        assert export_weights(client, tmp_path / "w.npz").weights == 10
    with np.load(tmp_path / "w.npz") as weights:
        assert set(weights) == {"in", "out"}
        np.testing.assert_array_equal(weights["in"], link.tensors["in"])
        np.testing.assert_array_equal(weights["out"], link.tensors["out"])


def test_a_working_copy_that_differs_is_taken_anew_with_its_counts(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon, link = two[0]
    link.count_shard(2, used=1)
    link.send(ONES, 8)
    daemon.take_all()
    replica: NDArray[np.float32] = link._compute._replica  # type: ignore[attr-defined]
    replica[[3, 10 + SHARDS + 2]] += QUANTUM
    link._compare()
    assert DIFFERS in capsys.readouterr().err
    assert link.shard_counts.tolist() == [[0] * 5, [0, 0, 1, 0, 0]]
    np.testing.assert_array_equal(daemon.weights()[:10], link.weights)
