"""What a peer may not say: it is dropped by its reason, and nothing changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from p2psgd.core.effects import Drop
from p2psgd.core.events import FrameReceived, UpdateBody
from p2psgd.wire import codec
from p2psgd.wire.messages import ORIGINS_MAX, FrontierRow
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update
from tests.core.cluster import WEIGHTS, Cluster, make_words, own_update, sample_update, status_of

Clusters = Callable[..., Cluster]


def test_a_run_has_a_last_origin_and_a_place_is_kept_for_the_own_one(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    for number in range(ORIGINS_MAX):
        body = pack_update(dataclasses.replace(header, node=1000 + number), payload)
        cluster.give(1, FrameReceived(cluster.replica(0).me, UpdateBody(body)))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.ORIGINS]
    cluster.give(1, own_update([1]))
    assert len(cluster.replica(1).frontier) == ORIGINS_MAX


def test_no_origin_is_of_node_0_but_the_one_row_of_a_dense_ring(clusters: Clusters) -> None:
    """It would stand for the rounds of a ring, in a run that has none, with every later joiner."""
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    peer = cluster.replica(0).me
    header, payload = sample_update(cluster)
    body = pack_update(dataclasses.replace(header, node=0, incarnation=0), payload)
    cluster.give(1, FrameReceived(peer, UpdateBody(body)))
    cluster.give(1, status_of(peer, [FrontierRow(0, 0, 1, header.digest)]))
    cluster.give(1, status_of(peer, [FrontierRow(0, 5, 1, header.digest)]))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.ORIGIN] * 3
    assert not cluster.replica(1).frontier
    assert cluster.replica(1).peers[peer].status == {}


def test_a_peer_that_has_more_of_our_updates_than_we_made_is_dropped(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    rows = [FrontierRow(*cluster.replica(1).me, 3, 1)]
    cluster.give(1, status_of(cluster.replica(0).me, rows))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.IDENTITY]


def corrupt(header: UpdateHeader, payload: bytes, what: str) -> bytes:
    changes: dict[str, dict[str, Any]] = {
        "digest": {"digest": header.digest ^ 1},
        "magnitude": {"magnitude": 0},
        "large magnitude": {"magnitude": codec.MAGNITUDE_MAX + 1},
        "count over the cap": {"count": codec.indices_max(WEIGHTS) + 1},
        "count too large": {"count": 4},
        "count too small": {"count": 2},
        "sequence": {"sequence": 0},
        "own": {"node": 2, "incarnation": 1},
    }
    match what:
        case "checksum":
            body = bytearray(pack_update(header, payload))
            body[-1] ^= 1
            return bytes(body)
        case "no indices":
            return pack_update(dataclasses.replace(header, count=0), b"")
        case "length":
            return pack_update(header, payload)[:-1]
        case "header":
            return bytes(10)
        case "cover":
            return pack_update(dataclasses.replace(header, cover=()), payload)
        case "index":
            return pack_update(header, codec.encode(make_words([3, 9, WEIGHTS]), WEIGHTS + 1))
        case _:
            return pack_update(dataclasses.replace(header, **changes[what]), payload)


BAD = {
    "checksum": "checksum",
    "digest": "digest",
    "magnitude": "magnitude",
    "large magnitude": "magnitude",
    "no indices": "count",
    "count over the cap": "count",
    "count too large": "payload",
    "count too small": "payload",
    "sequence": "sequence",
    "length": "update length",
    "header": "update length",
    "index": "payload",
    "own": "identity",
    "cover": "encoding",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_drops_the_peer_by_its_reason_and_changes_nothing(clusters: Clusters, what: str) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    replica = cluster.replica(1)
    before = replica.lattice.coordinates.tobytes(), replica.frontier.rows(), len(replica.log)
    effects = cluster.give(
        1, FrameReceived(cluster.replica(0).me, UpdateBody(corrupt(header, payload, what)))
    )
    drops = [effect for effect in effects if isinstance(effect, Drop)]
    assert [drop.code.label for drop in drops] == [BAD[what]]
    assert (replica.lattice.coordinates.tobytes(), replica.frontier.rows(), len(replica.log)) == before


def test_every_single_flipped_bit_of_an_update_is_noticed(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    body = pack_update(*sample_update(cluster))
    for bit in range(8 * len(body)):
        harmed = bytearray(body)
        harmed[bit // 8] ^= 1 << bit % 8
        effects = cluster.give(1, FrameReceived(cluster.replica(0).me, UpdateBody(harmed)))
        assert any(isinstance(effect, Drop) for effect in effects), bit
    assert cluster.replica(1).tally.applied == 0


def test_two_sides_that_disagree_on_a_digest_part_with_an_alarm(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    cluster.settle()
    origin = cluster.replica(0).me
    row = FrontierRow(*origin, 1, cluster.replica(1).frontier.digest(origin) ^ 1)
    cluster.give(1, status_of(origin, [row]))
    assert [(number, drop.code) for number, drop in cluster.drops] == [(1, RejectCode.DIGEST)]
    assert "differ in their digest" in cluster.alarms[0]


def test_parse_and_pack_of_an_update_are_inverse(clusters: Clusters) -> None:
    header, payload = sample_update(clusters(1))
    parsed, view = parse_update(pack_update(header, payload), WEIGHTS)
    assert (parsed, bytes(view)) == (header, payload)
