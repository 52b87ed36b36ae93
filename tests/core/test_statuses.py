"""What a STATUS says, and for whom its sender vouches."""

from __future__ import annotations

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.state import State
from p2psgd.core.status import pack_status, tables_of
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
from tests.core.cluster import by_origin, initial_coordinates, make_spec

ME, A, B = Origin(1, 1), Origin(2, 1), Origin(3, 1)
VIEW = View(4, (ME, A, B), cluster_id=77)


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
    tables = tables_of(state, {peer.origin: peer for peer in peers}, VIEW, {A: saved}, heard_since=45.0)
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
