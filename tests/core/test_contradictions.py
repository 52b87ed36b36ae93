"""A snapshot that says something else than what its taker knows is refused, whatever its digest proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from p2psgd.core.effects import Drop
from p2psgd.core.events import CheckpointDue, Resumed
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.snapshot_install import Adoption, ContradictionError, Place, SnapshotIntake, contradicted_by
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire import codec
from p2psgd.wire.cover import NEW, NUMBER_MAX, CoverRow, pack_table
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update
from tests.core.cluster import Cluster, own_update
from tests.core.test_snapshots import deliver_until, fall_behind

Clusters = Callable[..., Cluster]
ERROR = 12_345


@pytest.fixture
def cluster(clusters: Clusters) -> Cluster:
    """Of each of three nodes all have three updates. Then node 0 made two that only it has, and nodes 1 and 2
    two each that it has not.
    """
    made = clusters(3)
    made.found()
    made.train([0, 1, 2], 3)
    made.cut(0, 1)
    made.cut(0, 2)
    for steps in (4, 5):
        for number in range(3):
            made.give(number, own_update([7 * number, 4990 + steps], steps=steps))
    made.settle()
    return made


def snapshot(donor: Replica, errors: dict[Origin, int], *, tail: tuple[Origin, int] | None) -> SnapshotIntake:
    """What comes of it if the digests of those origins are wrong by that: rows, and frames of the tail, which
    begins after that update.
    """
    rows = [
        row._replace(digest=(row.digest + errors.get(Origin(row.node, row.incarnation), 0)) % 2**64)
        for row in donor.frontier.rows()
    ]
    bodies = []
    if tail is not None:
        origin, after = tail
        for sequence in range(donor.frontier.sequence(origin), after, -1):
            frame = donor.log.frame(origin, sequence)
            assert frame is not None
            header, payload = parse_update(frame[PREFIX.size :], donor.spec.weights)
            wrong = replace(header, digest=(header.digest + errors.get(origin, 0)) % 2**64)
            bodies.append(pack_update(wrong, bytes(payload)))
    assert donor.state.fits(rows, donor.lattice.digest), "the errors do not cancel"
    intake = SnapshotIntake(
        donor.spec.weights,
        donor.spec.key,
        rows,
        donor.lattice.digest,
        log=UpdateLog(budget_bytes=100_000),
        tail_bytes_max=10_000,
    )
    intake.chunk(donor.lattice.coordinates.tobytes())
    for body in bodies:
        intake.tail(body)
    intake.end(len(bodies))
    return intake


def found(cluster: Cluster, wrong: int, hidden: int, *, tail: tuple[int, int] | None = None) -> Place | None:
    """What node 0 finds in node 1's snapshot if the rows of nodes `wrong` and `hidden` are wrong."""
    incarnations = [replica.me for replica in cluster.alive()]
    errors = {incarnations[hidden]: -ERROR}
    errors[incarnations[wrong]] = errors.get(incarnations[wrong], 0) + ERROR
    begins = None if tail is None else (incarnations[tail[0]], tail[1])
    state, intake = cluster.replica(0).state, snapshot(cluster.replica(1), errors, tail=begins)
    place = contradicted_by(state, intake)
    if place is None:
        Adoption(state, intake).turn()
    return place


def test_one_that_is_right_is_not_refused(cluster: Cluster) -> None:
    for tail in (None, (1, 0), (1, 2), (1, 4)):
        assert found(cluster, 1, 1, tail=tail) is None


def test_updates_that_only_the_taker_has_must_go_on_from_it(cluster: Cluster) -> None:
    assert found(cluster, 0, 1) == (cluster.replica(0).me, 3)


def test_what_both_have_applied_must_have_one_digest(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 3)
    assert found(cluster, 2, 2) is None
    assert found(cluster, 2, 1) in {(replica.me, 3) for replica in cluster.alive()}


def test_updates_that_only_the_snapshot_has_must_go_on_from_the_taker(cluster: Cluster) -> None:
    origin = cluster.replica(1).me
    assert found(cluster, 1, 2, tail=(1, 3)) == (origin, 3)
    assert found(cluster, 1, 2, tail=(1, 2)) == (origin, 2)
    cluster.lose_log(0)  # from now on it knows only the last digest
    assert found(cluster, 1, 2, tail=(1, 2)) == (origin, 3)


def test_what_neither_log_reaches_cannot_be_told(cluster: Cluster) -> None:
    assert found(cluster, 1, 2, tail=(1, 4)) is None
    assert found(cluster, 1, 2) is None


def test_a_log_that_has_changed_in_memory_is_not_blamed_on_the_donor(cluster: Cluster) -> None:
    hurt = cluster.replica(0)
    lane = hurt.log._origin_logs[hurt.me]
    frame = lane.entries[-1]
    assert isinstance(frame, bytes)
    lane.entries[-1] = frame[:-1] + bytes([frame[-1] ^ 1])
    with pytest.raises(LookupError, match="update 5 of 0000000000000001 is damaged in the log: the update's"):
        found(cluster, 1, 1)
    assert hurt.state.digest_at(hurt.me, 5) == hurt.frontier.digest(hurt.me)
    assert hurt.state.digest_at(hurt.me, 4) is not None


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("trimmed", [False, True])
def test_it_changes_nothing_its_donor_is_avoided_and_another_gives(clusters: Clusters, trimmed: bool) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    donor, joiner = cluster.replica(0), cluster.replica(2)
    if trimmed:  # only what is to be applied again tells the digest at the update before it
        cluster.lose_log(2)
    cluster.give(2, own_update([17]))
    right, scrub_due = donor.frontier._rows.copy(), joiner.scanner.scrub_due
    for origin, error in ((joiner.me, ERROR), (donor.me, -ERROR)):
        sequence, digest, steps = right[origin]
        donor.frontier._rows[origin] = (sequence, (digest + error) % 2**64, steps)
    while donor.scanner.copying:
        cluster.give(0, Resumed())
    donor.frontier._rows.update(right)
    before = joiner.lattice.coordinates.tobytes()
    deliver_until(cluster, lambda: bool(cluster.drops))
    words = f"this node and node-0's snapshot differ in their digest of {joiner.me.node:016x} at update 2"
    assert cluster.drops == [(2, Drop(donor.me, RejectCode.SNAPSHOT, words))]
    assert cluster.alarms == [f"{words}: it is refused, and the weights here are looked at anew"]
    assert joiner.lattice.coordinates.tobytes() == before
    assert joiner.fetch.taking.bytes_taken == 0  # refused at its beginning
    assert joiner.scanner.scrub_due < scrub_due
    cluster.paused = set()
    cluster.tick(5)
    assert [replica.counters.snapshots_given for replica in cluster.alive()] == [1, 1, 0]
    assert len(cluster.drops) == 1
    cluster.assert_converged()


def test_a_snapshot_whose_cover_does_not_lead_to_an_update_here_is_not_installed(clusters: Clusters) -> None:
    """It covers more of a contributor that the updates before have named, and by the snapshot none has."""
    replica = clusters(1, mode="owners").replica(0)
    state, owner = replica.state, Origin(2, 1)
    cover: tuple[CoverRow, ...]
    for sequence, cover in ((1, (CoverRow(NEW, 1, 3, 1),)), (2, (CoverRow(0, 5),))):
        header = UpdateHeader(*owner, sequence, 0, 1, 1, 0, cover=cover)
        frame = pack_frame(FrameType.UPDATE, pack_update(header, b""))
        state.apply(owner, header, np.empty(0, np.uint32), frame)
    before = state.lattice.coordinates.tobytes()
    for covers in ([], [pack_table(owner, [(Origin(3, 1), NUMBER_MAX)])]):
        intake = SnapshotIntake(
            state.spec.coordinates,
            state.spec.key,
            [FrontierRow(*owner, 1, 0)],
            state.lattice.digest,
            log=UpdateLog(budget_bytes=1000),
            tail_bytes_max=1000,
            owners=True,
        )
        for table in covers:
            intake.cover(table)
        intake.chunk(state.lattice.coordinates.tobytes())
        intake.end(0)
        assert contradicted_by(state, intake) is None
        with pytest.raises(ContradictionError) as caught:
            Adoption(state, intake).turn()
        assert (caught.value.place, caught.value.what) == ((owner, 2), "cover")
    assert state.lattice.coordinates.tobytes() == before
    assert dict(state.covers.numbers(owner)) == {Origin(3, 1): 6}


def test_a_checkpoint_of_a_frontier_that_is_wrong_does_not_have_its_digest(clusters: Clusters) -> None:
    cluster = clusters(1)
    cluster.give(0, own_update([5]))
    replica = cluster.replica(0)
    sequence, digest, steps = replica.frontier._rows[replica.me]
    for error in (0, ERROR):
        replica.frontier._rows[replica.me] = (sequence, (digest + error) % 2**64, steps)
        cluster.give(0, CheckpointDue())
        written = cluster.checkpoints[0]
        assert written is not None
        right = codec.digest_coordinates(written.coordinates, replica.spec.key) == written.digest
        assert right == (not error)  # the disk's side refuses to write it
