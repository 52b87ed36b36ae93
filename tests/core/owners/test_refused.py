"""A contribution that an owner has no room for is refused, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from p2psgd.core.effects import Drop
from p2psgd.core.events import ContributionBody, FrameReceived, TimePassed
from p2psgd.core.owners import aggregator
from p2psgd.wire.contribution import ContributionHeader, encode_words, pack_contribution
from p2psgd.wire.reject import RejectCode
from tests.core.cluster import WEIGHTS, Cluster


def test_the_first_of_a_contributor_leaves_nothing_to_cover(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator, "OUTSIDE_MAX", 1)
    monkeypatch.setattr(aggregator, "OUTSIDE_CONTRIBUTIONS", 0)
    cluster = clusters(2, mode="owners")
    cluster.found()
    replica, peer = cluster.replica(1), cluster.replica(0).me
    base, payload = encode_words(np.array([2, 4], np.uint32), WEIGHTS)  # weights of node 0
    body = pack_contribution(ContributionHeader(1, 1, base, 2), payload)
    effects = cluster.give(1, FrameReceived(peer, ContributionBody(body)))
    drops = [each for each in effects if isinstance(each, Drop)]
    assert [(each.peer, each.code) for each in drops] == [(peer, RejectCode.CONTRIBUTION)]
    cluster.now += 1.0
    cluster.give(1, TimePassed())
    assert replica.sequence == 0
    assert replica.owners is not None
    assert replica.owners.received == {}
