"""What all machines must have alike: p2psgd, the run, the list of hosts, and about the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p2psgd.doctor.checks.clocks import compare_clocks
from p2psgd.doctor.checks.run import compare_hosts, compare_runs
from p2psgd.doctor.checks.versions import compare_versions
from p2psgd.doctor.finding import Finding
from p2psgd.doctor.messages import Facts
from p2psgd.doctor.peer import Peer
from p2psgd.wire.messages import Hello


def compare(hello: Hello, facts: Facts, peers: Sequence[Peer]) -> list[Finding]:
    """This doctor's greeting and facts with those of all that it has met; only what differs."""
    return [finding for peer in peers for finding in _compare(hello, facts, peer) if finding is not None]


def _compare(hello: Hello, facts: Facts, peer: Peer) -> Iterator[Finding | None]:
    name = str(peer)
    for session in peer.sessions[-1:]:
        yield compare_runs(name, hello, session.theirs)
        if session.facts is not None:
            yield compare_versions(name, facts, session.facts)
            yield compare_hosts(name, facts, session.facts)
    if peer.clock is not None:
        yield compare_clocks(name, peer.clock)
