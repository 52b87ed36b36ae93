"""What a node learns of its peers' addresses."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from p2psgd.core.timing import Timing
from p2psgd.net.address import Address
from p2psgd.net.admission import Standing
from p2psgd.net.peer_exchange import NAME, AddressHints, pack_known_peers
from p2psgd.node.peers import NodePeers
from tests.net.parties import Party


def test_addresses_told_by_peers_are_known_hosts_and_those_announced_on_the_network_are_not(
    tmp_path: Path,
) -> None:
    told = AddressHints()
    told.tell(7, Address("10.0.0.7", 7315))
    (tmp_path / NAME).write_bytes(pack_known_peers(told.told()))
    party = Party(1)
    view = SimpleNamespace(number=0, incarnations={})
    replica = SimpleNamespace(
        me=party.origin,
        timing=Timing(5.0),
        view=view,
        has_reported_view=lambda peer: True,
        peers={},
        spec=SimpleNamespace(fingerprint=b"run"),
    )
    peers = NodePeers(
        cast(Any, replica),
        party.mesh,
        options=cast(Any, SimpleNamespace(state=tmp_path, advertise=None, peers=None)),
        listen=party.address,
        node_log=cast(Any, None),
    )
    sighting = SimpleNamespace(run=b"run", node=8, host=(Address("10.0.0.8", 7315),))
    peers._see(cast(Any, sighting))
    party.mesh.dialer.follow_hints = lambda wanted: None  # type: ignore[method-assign]
    peers.tick()
    party.listening.close()
    now = time.monotonic()
    assert party.mesh.known_hosts.standing("10.0.0.7", now) is Standing.KNOWN
    assert party.mesh.known_hosts.standing("10.0.0.8", now) is Standing.STRANGER
