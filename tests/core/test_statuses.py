"""What a STATUS says, and for whom its sender vouches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.state import State
from p2psgd.core.status import LeastTold, pack_status, tables_of
from p2psgd.core.update_log import UpdateLog
from p2psgd.core.view import View
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import (
    ConfirmedRow,
    FrontierRow,
    Status,
    parse_confirmed,
    parse_frontier,
    parse_loss,
    parse_message,
)
from tests.core.cluster import Cluster, by_origin, initial_coordinates, make_spec

ME, A, B = Origin(1, 1), Origin(2, 1), Origin(3, 1)
VIEW = View(4, (ME, A, B), cluster_id=77)
Clusters = Callable[..., Cluster]


@pytest.fixture
def state() -> State:
    """Nine updates of A applied, of which the first two have left the log."""
    state = State(make_spec(), ME, initial_coordinates(), UpdateLog(budget_bytes=1 << 20))
    for sequence in range(1, 10):
        state.log.append(A, sequence, bytes(100))
        state.frontier.advance(A, sequence, 1000 + sequence, 2 * sequence)
    state.log.trim(lambda origin: 2, lambda origin: 0, share=0.0)
    return state


def linked(origin: Origin, *rows: FrontierRow, view: int = 4, last_seen: float = 50.0) -> Peer:
    peer = Peer(origin, "peer", last_seen=last_seen, last_progress=last_seen, credit=1)
    peer.status = peer.ahead = by_origin(rows)
    peer.view = view
    return peer


def read(state: State, *peers: Peer, saved: int = 0, ready: bool = True) -> Status:
    tables = tables_of(
        state,
        {peer.origin: peer for peer in peers},
        VIEW,
        {A: saved},
        heard_since=45.0,
        least_told=LeastTold(),
    )
    frame = pack_status(tables, VIEW, evict_requests=(), ready=ready, loss=2.5)
    message = parse_message(FrameType.STATUS, frame[PREFIX.size :])
    assert isinstance(message, Status)
    return message


def test_it_tells_frontier_floor_what_is_on_disk_and_the_view(state: State) -> None:
    status = read(state, saved=5, ready=False)
    assert parse_frontier(status.frontier) == [
        FrontierRow(*A, 9, 1009, trimmed_to=2, durable=5, least=9, steps=18)
    ]
    assert (status.view, status.cluster_id, status.ready, parse_loss(status.loss)) == (4, 77, False, 2.5)
    assert status.confirmed == b""


def test_least_is_what_the_sender_and_all_that_it_vouches_for_have(state: State) -> None:
    status = read(state, linked(A, FrontierRow(*A, 12, 0), view=3), linked(B, FrontierRow(*A, 7, 0)))
    assert parse_confirmed(status.confirmed) == [ConfirmedRow(*A, 3), ConfirmedRow(*B, 4)]
    assert parse_frontier(status.frontier)[0].least == 7


@pytest.mark.parametrize(
    ("peer", "last_seen"),
    [
        (linked(B, last_seen=44.0), False),
        (linked(Origin(3, 2)), True),
        (linked(Origin(9, 1)), True),
        (linked(B, FrontierRow(*A, 12, 0, trimmed_to=10)), True),
        (Peer(B, "peer", last_seen=50.0, last_progress=50.0, credit=1), False),
    ],
    ids=["silent", "another life", "no member", "its log starts beyond our frontier", "no status yet"],
)
def test_for_whom_it_does_not_vouch(state: State, peer: Peer, last_seen: bool) -> None:
    """But it tells that it hears them, if it does."""
    status = read(state, linked(A, FrontierRow(*A, 9, 0)), peer)
    others = [ConfirmedRow(*peer.origin, 0)] if last_seen else []
    assert parse_confirmed(status.confirmed) == [ConfirmedRow(*A, 4), *others]
    assert parse_frontier(status.frontier)[0].least == 9


def test_of_a_node_that_is_linked_in_two_lives_it_names_the_newer(state: State) -> None:
    status = read(state, linked(Origin(3, 2)), linked(B))
    assert parse_confirmed(status.confirmed) == [ConfirmedRow(3, 2, 0)]


def test_the_least_is_the_same_whatever_was_known_before(state: State) -> None:
    chance, known, origins = Random(1), LeastTold(), [A, B, Origin(4, 1)]
    tables: list[Mapping[Origin, FrontierRow]] = [{}, {}]
    for _ in range(200):
        match chance.randrange(3):
            case 0:
                origin = chance.choice(origins)
                state.frontier.advance(origin, state.frontier.sequence(origin) + 1, 1, 1)
            case 1:
                has = [origin for origin in origins if chance.random() < 0.7]
                rows = [FrontierRow(*origin, chance.randrange(12), 1) for origin in has]
                tables[chance.randrange(2)] = by_origin(rows)
            case _:
                tables.reverse()
        count = chance.randrange(3)
        least = {
            origin: min(
                [sequence, *(table[origin].sequence if origin in table else 0 for table in tables[:count])]
            )
            for origin, (sequence, _, _) in state.frontier.items()
        }
        assert known.of(state.frontier, tables[:count]) == least


@pytest.mark.parametrize("mode", ["async", "owners", "ring-sparse"])
def test_what_a_peer_was_sent_on_this_link_is_not_sent_again(clusters: Clusters, mode: str) -> None:
    cluster = clusters(3, mode=mode)
    cluster.found()
    sent = statuses_of(cluster)
    if mode == "async":
        cluster.train([0, 1], 3)
    cluster.tick(60.0)
    sent.clear()
    cluster.tick(60.0)
    assert len(sent) > 10
    assert not any(status.whole or status.frontier or status.confirmed for status in sent)
    cluster.cut(0, 1)
    cluster.link(0, 1)
    sent.clear()
    cluster.settle()
    assert [status.whole for status in sent[:2]] == [True, True]


def statuses_of(cluster: Cluster) -> list[Status]:
    """Return a list to which each STATUS that arrives in the cluster from now on is added."""
    arrived: list[Status] = []
    deliver = cluster.deliver

    def watched(source: int, target: int) -> bool:
        queue = cluster.queues.get((source, target))
        if queue and queue[0][4] == FrameType.STATUS:
            message = parse_message(FrameType.STATUS, queue[0][PREFIX.size :])
            assert isinstance(message, Status)
            arrived.append(message)
        return deliver(source, target)

    cluster.deliver = watched  # type: ignore[method-assign]
    return arrived
