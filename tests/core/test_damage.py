"""Which weights were wrong, told by comparing what memory held with the snapshot that replaced it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from p2psgd.core.replica import Replica
from p2psgd.core.snapshot_install import Adoption, SnapshotIntake, name_differences
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire.frames import PREFIX
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]


def snapshot_of(donor: Replica, log: UpdateLog, *, tail_after: int) -> SnapshotIntake:
    """What comes of a snapshot with those of the donor's own updates."""
    rows, me = donor.frontier.rows(), donor.me
    numbers = range(donor.frontier.sequence(me), tail_after, -1)
    intake = SnapshotIntake(
        donor.spec.weights,
        donor.spec.key,
        rows,
        donor.lattice.digest,
        log=log,
        tail_bytes_max=10_000,
    )
    intake.chunk(donor.lattice.coordinates.tobytes())
    for number in numbers:
        frame = donor.log.frame(me, number)
        assert frame is not None
        intake.tail(frame[PREFIX.size :])
    intake.end(len(numbers))
    return intake


def hurt_and_ahead(clusters: Clusters) -> tuple[Replica, Replica]:
    """A node with a wrong weight, and one that has made two updates since."""
    cluster = clusters(2)
    cluster.found()
    cluster.train([0, 1], 3)
    cluster.cut(0, 1)
    hurt, ahead = cluster.replica(0), cluster.replica(1)
    hurt.lattice.coordinates[40] += 1 << 10
    for steps in (4, 5):
        cluster.give(1, own_update([40, 41], steps=steps))
    return hurt, ahead


@pytest.mark.parametrize(
    ("tail_after", "words"),
    [
        (3, "hidden[0, 40] was "),
        (0, "hidden[0, 40] was "),
        (4, "which weights were wrong cannot be told: updates came in between that no log holds"),
    ],
)
def test_updates_that_only_the_snapshot_has_are_not_taken_for_damage(
    clusters: Clusters, tail_after: int, words: str
) -> None:
    hurt, ahead = hurt_and_ahead(clusters)
    state = hurt.state
    adoption = Adoption(state, snapshot_of(ahead, state.log, tail_after=tail_after))
    assert adoption.turn()
    told = adoption.finish(damaged=True)
    assert told.startswith(words)
    if "cannot" not in words:
        right = int(hurt.lattice.coordinates[40])
        quantum = hurt.spec.quantum
        assert told == f"{words}{(right + (1 << 10)) * quantum:g} instead of {right * quantum:g}"


def test_of_many_wrong_weights_three_are_named(clusters: Clusters) -> None:
    spec = clusters(1).spec
    old, new = np.zeros(spec.weights, np.int32), np.zeros(spec.weights, np.int32)
    assert name_differences(spec, old, new) == "no weight is wrong any more"
    new[[1, 2, 3, 4, 4999]] = 1 << 20
    assert name_differences(spec, old, new) == (
        "hidden[0, 1] was 0 instead of 1; hidden[0, 2] was 0 instead of 1; "
        "hidden[0, 3] was 0 instead of 1; 2 more were wrong"
    )
