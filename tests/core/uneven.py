"""Four nodes of which each lacks other updates of other origins: what tails of a log are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.update import parse_update
from tests.core.cluster import Cluster, own_update

DONOR, LINKED, UNLINKED, ASKER = range(4)


def make_uneven(clusters: Callable[..., Cluster]) -> Cluster:
    """All members of one view. DONOR has everything; of its updates, of those of LINKED's former life and of
    UNLINKED each of the others lacks some, and of each other numbers. The links to UNLINKED are cut.
    """
    cluster = clusters(4)
    cluster.found()
    cluster.train([DONOR, LINKED, UNLINKED, ASKER], 2)
    _make_unheard(cluster, [DONOR, LINKED, ASKER], by=[UNLINKED])
    cluster.kill(LINKED)
    cluster.boot(LINKED, from_disk=True)
    for other in (DONOR, ASKER):
        cluster.link(LINKED, other)
    cluster.tick(4)
    _make_unheard(cluster, [DONOR, LINKED], by=[UNLINKED])
    _make_unheard(cluster, [DONOR, UNLINKED], by=[UNLINKED, LINKED])
    cluster.cut(DONOR, UNLINKED)
    cluster.cut(ASKER, UNLINKED)
    _make_unheard(cluster, [DONOR, LINKED], by=[LINKED, ASKER])
    assert len(cluster.replica(DONOR).membership.view.members) == 4
    return cluster


def _make_unheard(cluster: Cluster, nodes: list[int], *, by: list[int]) -> None:
    """Each of `nodes` makes an update, of which those hear nothing, now or later."""
    everybody = range(len(cluster.replicas))
    cluster.stuck |= {(node, deaf) for node in everybody for deaf in by}
    for node in nodes:
        cluster.give(node, own_update([node, 1000 + len(cluster.stuck)]))
    cluster.tick(1.5)  # a STATUS of each


def beyond(holder: Replica, others: Sequence[Mapping[Origin, int]]) -> dict[Origin, list[int]]:
    """Of every origin the numbers that the holder's log has and that are beyond one of `others`."""
    least = {origin: min(other.get(origin, 0) for other in others) for origin in holder.frontier}
    return {
        origin: list(
            range(max(holder.log.trimmed_to(origin), first) + 1, holder.frontier.sequence(origin) + 1)
        )
        for origin, first in least.items()
    }


def applied(replica: Replica) -> dict[Origin, int]:
    """Its last number of every origin."""
    return {origin: replica.frontier.sequence(origin) for origin in replica.frontier}


def numbers_in(holder: Replica, frames: Iterable[bytes]) -> dict[Origin, list[int]]:
    """The numbers of those UPDATE or SNAPSHOT_TAIL frames by origin, each time ascending."""
    found: dict[Origin, list[int]] = {origin: [] for origin in holder.frontier}
    for frame in frames:
        header, _ = parse_update(frame[PREFIX.size :], holder.spec.weights)
        found[Origin(header.node, header.incarnation)].append(header.sequence)
    return {origin: sorted(numbers) for origin, numbers in found.items()}
