"""Checks that take other machines: reachability both ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from p2psgd.cli.doctor.findings import Finding, note, ok, problem
from p2psgd.cli.doctor.greeting import ANSWERED, UNANSWERED, Greeter, Outcome, Peer
from p2psgd.net.address import Address
from p2psgd.wire.messages import plain_ip

REACH: Final = "reach"


def check_peers(greeter: Greeter, listen: Address, *, daemon_here: bool) -> Iterator[Finding]:
    """Judge what greeting all peers has shown; `daemon_here`: a node has this machine's port."""
    yield from check_listening(greeter.peers, listen)
    for peer in greeter.peers:
        yield check_peer(peer, listen, daemon_here=daemon_here)
    yield from check_twins(greeter.peers)
    named = {peer.node for peer in greeter.peers}, {host for peer in greeter.peers for host in peer.hosts}
    for node, (host, who) in greeter.visitors.items():
        if node not in named[0] and host not in named[1]:
            words = f"{who} came from {host}, which no line leads to"
            yield note(REACH, words, "add its line to the list of hosts")
    if greeter.dropped:
        counts = ", ".join(f"{count} x {reason}" for reason, count in sorted(greeter.dropped.items()))
        yield note("port", f"connections that were refused: {counts}")


def check_peer(peer: Peer, listen: Address, *, daemon_here: bool) -> Finding:
    """Judge both ways between this machine and one line of the list."""
    if peer.outcome not in ANSWERED:
        return _check_unreached(peer)
    if peer.outcome is Outcome.ITSELF:
        return note(REACH, f"{peer} leads to this machine itself")
    tail = f"; {peer.words}" if peer.words else ""  # which run a node trains
    if peer.visited:
        return ok(REACH, f"{peer} is reached, and reaches this machine{tail}")
    if daemon_here:
        who = "`p2psgd status`" if peer.outcome is Outcome.NODE else "the doctor there"
        return ok(REACH, f"{peer} is reached{tail}; {who} shows whether it reaches the node of this machine")
    if peer.outcome is Outcome.NODE:
        words = f"{peer} is reached{tail}; whether it reaches this machine was not shown: it did not dial"
        mend = f"start the node here, then there: nc -zv THIS_MACHINE {listen.port}; if that fails, here: "
        return note(REACH, words, mend + _open_port(listen.port))
    words = f"{peer} is reached, but its doctor has not reached this machine"
    mend = f"here: {_open_port(listen.port)}; and does the list of hosts there name this machine?"
    return problem(REACH, words, mend)


_Unreached = tuple[str, str, bool]  # what it means, what mends it, and whether it may mend itself
_LISTENING: Final = "sudo ss -ltnp 'sport = :{port}'"
_UNREACHED: Final[Mapping[Outcome, _Unreached]] = {
    Outcome.UNTRIED: ("it was not tried in this time", "a longer --wait SECONDS", True),
    Outcome.REFUSED: (
        "nothing listens there",
        "start it there: p2psgd doctor with the same options, or p2psgd node",
        True,
    ),
    Outcome.SILENT: (
        "the machine is off, or a firewall drops what is sent to it",
        "is it on? then there: {open}",
        True,
    ),
    Outcome.AWAY: ("the machine is off, or has another address", "switch it on; there: ip address", True),
    Outcome.MUTE: (
        "a node that waits for its trainer does so",
        f"there: p2psgd status; if no node runs there: {_LISTENING}",
        True,
    ),
    Outcome.UNRESOLVED: ("", "correct the line, or make the name known: getent hosts {host}", False),
    Outcome.UNREACHABLE: (
        "this machine knows no way there",
        "is the network up? ip address; ip route get {host}",
        False,
    ),
    Outcome.TLS: ("", "start all with --tls DIR, with certificates of one CA: p2psgd ca issue", False),
    Outcome.VERSION: ("", "on both machines: p2psgd --version", False),
    Outcome.STRANGE: ("", f"there: {_LISTENING} shows what listens", False),
}


def _check_unreached(peer: Peer) -> Finding:
    """Judge a line at which nobody has answered."""
    meaning, mend, passing = _UNREACHED[peer.outcome]
    host, port = peer.address.host, peer.address.port
    words = f"{peer}: {', '.join(filter(None, (peer.words, meaning)))}"
    if peer.visited:
        words, passing = f"{peer} reaches this machine, but is not reached from here: {peer.words}", False
        if peer.outcome in UNANSWERED:
            mend = "there: {open}; and does this line name its address and port?"
    return problem(REACH, words, mend.format(host=host, port=port, open=_open_port(port)), passing=passing)


def check_twins(peers: Iterable[Peer]) -> Iterator[Finding]:
    """Find lines that lead to one node."""
    first: dict[int, Peer] = {}
    for peer in peers:
        if peer.node is None or peer.outcome is Outcome.ITSELF:
            continue
        if peer.node in first:
            words = f"{first[peer.node].address} and {peer.address} are one node"
            yield problem(REACH, words, "leave one of the two lines in the list, or give each its node")
        first.setdefault(peer.node, peer)


def check_listening(peers: Iterable[Peer], listen: Address) -> Iterator[Finding]:
    """Find out whether a node that listens on loopback alone has peers on other machines."""
    elsewhere = [peer for peer in peers for host in peer.hosts if not plain_ip(host).is_loopback]
    if elsewhere and plain_ip(listen.host).is_loopback:
        words = f"this node listens on {listen}, which {elsewhere[0].address} cannot reach"
        mend = f"--listen 0.0.0.0:{listen.port}, with --tls DIR"
        yield problem("port", f"{words}: it is for this machine alone", mend)


def _open_port(port: int) -> str:
    return f"sudo ufw allow {port}/tcp, or the cloud's security group: TCP {port} in"
