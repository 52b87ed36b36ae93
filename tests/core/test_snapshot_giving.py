"""The tail of a snapshot, compared exactly for every origin: what some other member lacks, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import FrameReceived
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import SnapshotRequest
from tests.core.cluster import Cluster
from tests.core.uneven import ASKER, DONOR, LINKED, UNLINKED, applied, beyond, make_uneven, numbers_in

Clusters = Callable[..., Cluster]


@pytest.fixture
def uneven(clusters: Clusters) -> Cluster:
    return make_uneven(clusters)


def tail_given(cluster: Cluster, *, to: int) -> dict[Origin, list[int]]:
    """What DONOR gives that node of its log when it is asked for a snapshot."""
    cluster.stuck |= {(DONOR, to)}
    queue = cluster.queues[DONOR, to]
    queue.clear()
    cluster.give(DONOR, FrameReceived(cluster.replica(to).me, SnapshotRequest(view=0)))
    assert queue[-1][4] == FrameType.SNAPSHOT_END
    tail = [frame for frame in queue if frame[4] == FrameType.SNAPSHOT_TAIL]
    return numbers_in(cluster.replica(DONOR), tail)


def test_it_has_what_any_other_member_lacks_linked_or_not(uneven: Cluster) -> None:
    donor = uneven.replica(DONOR)
    others = [applied(uneven.replica(LINKED)), applied(uneven.replica(UNLINKED))]
    assert uneven.replica(UNLINKED).me not in donor.peers
    former = Origin(LINKED + 1, 1)
    expected = {
        donor.me: [3, 4, 5, 6],
        former: [3],
        uneven.replica(LINKED).me: [1, 2],
        uneven.replica(UNLINKED).me: [3],
        uneven.replica(ASKER).me: [3],
    }
    assert former not in donor.membership.view
    assert beyond(donor, others) == expected
    assert tail_given(uneven, to=ASKER) == expected


def test_what_only_the_asker_lacks_is_not_in_it(uneven: Cluster) -> None:
    donor = uneven.replica(DONOR)
    others = [applied(uneven.replica(UNLINKED)), applied(uneven.replica(ASKER))]
    expected = beyond(donor, others)
    assert expected != beyond(donor, [*others, applied(uneven.replica(LINKED))])
    assert tail_given(uneven, to=LINKED) == expected


def test_what_has_left_the_donors_log_is_not_in_it(uneven: Cluster) -> None:
    donor = uneven.replica(DONOR)
    gone = {donor.me: 4, uneven.replica(ASKER).me: 3}
    donor.log.trim(lambda origin: gone.get(origin, 0), lambda origin: 0, share=0.0)
    expected = beyond(donor, [applied(uneven.replica(node)) for node in (LINKED, UNLINKED)])
    assert expected[donor.me] == [5, 6]
    assert expected[uneven.replica(ASKER).me] == []
    assert tail_given(uneven, to=ASKER) == expected


def test_a_donor_and_an_asker_alone_in_their_view_need_none(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    cluster.train([0, 1], 2)
    assert not any(tail_given(cluster, to=1).values())
