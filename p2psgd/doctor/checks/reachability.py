"""Is every peer's port reached from here, and this one's from there? What says which, and what to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.doctor.outcome import Outcome
from p2psgd.doctor.peer import Peer

CHECK: Final = "reach"
START: Final = "start it there: p2psgd doctor with the same options, or p2psgd node"


def check_peer(peer: Peer, listen: Address, *, daemon_here: bool) -> list[Finding]:
    """Both ways between this machine and one line; `daemon_here`: a node has this machine's port."""
    match peer.outcome:
        case Outcome.ITSELF:
            return [note(CHECK, f"{peer} leads to this machine itself")]
        case Outcome.NODE:
            return _check_node(peer, listen, daemon_here=daemon_here)
        case Outcome.DOCTOR:
            return [_check_way_back(peer, listen)]
        case Outcome.LEFT:
            return [problem(CHECK, f"{peer}: {peer.words}", START, passing=True)]
        case _ if peer.present or peer.sessions or peer.heard_node:
            return [_check_way_there(peer)]
        case _:
            return [_not_come(peer)]


def check_twins(peers: Sequence[Peer]) -> list[Finding]:
    """Lines that lead to one node."""
    first: dict[int, Peer] = {}
    found = []
    for peer in peers:
        if peer.node is None:
            continue
        if peer.node in first:
            words = f"{first[peer.node].address} and {peer.address} are one node"
            found.append(
                problem(
                    CHECK, words, "leave one of the two lines in the list of hosts, or give each its node"
                )
            )
        first.setdefault(peer.node, peer)
    return found


def check_visitors(visitors: Mapping[str, str]) -> list[Finding]:
    """Who came that the list does not name."""
    return [
        note(CHECK, f"{words} came from {host}, which no line leads to", "add its line to the list of hosts")
        for host, words in visitors.items()
    ]


def _check_node(peer: Peer, listen: Address, *, daemon_here: bool) -> list[Finding]:
    words = peer.words
    if peer.other_run:
        return [problem("run", f"{peer}: {words}", "give this doctor and that node the same --recipe")]
    if peer.reaches_us:
        return [ok(CHECK, f"{peer} is reached, and reaches this machine; {words}")]
    if daemon_here:
        return [ok(CHECK, f"{peer} is reached; {words}; `p2psgd status` tells whether the two are linked")]
    unknown = f"{peer} is reached; {words}; whether it reaches this machine was not shown: it did not dial"
    mend = f"start the node here, then there: nc -zv THIS_MACHINE {listen.port}; if that fails, here: "
    return [note(CHECK, unknown, mend + _open_port(listen.port))]


def _check_way_back(peer: Peer, listen: Address) -> Finding:
    match peer.reaches_us:
        case True:
            return ok(CHECK, f"{peer} is reached, and reaches this machine")
        case False:
            words = f"{peer} is reached, but does not reach this machine: {peer.their_words}"
            return problem(CHECK, words, f"here: {_open_port(listen.port)}")
        case _:
            words = f"{peer} is reached; it had not found out whether it reaches this machine when it ended"
            return note(CHECK, words, "run all doctors once more, at about the same time")


def _check_way_there(peer: Peer) -> Finding:
    """It is there, and its port is not reached."""
    words = f"{peer} reaches this machine, but is not reached from here: {peer.words}"
    match peer.outcome:
        case Outcome.SILENT | Outcome.AWAY | Outcome.REFUSED:
            mend = f"there: {_open_port(peer.address.port)}; and does this line name its address and port?"
            return problem(CHECK, words, mend)
        case _:
            return problem(CHECK, words, _mend_of(peer))


def _not_come(peer: Peer) -> Finding:
    match peer.outcome:
        case Outcome.REFUSED:
            return problem(CHECK, f"{peer}: connection refused, nothing listens there", START, passing=True)
        case Outcome.SILENT:
            words = f"{peer}: {peer.words}: the machine is off, or a firewall drops what is sent to it"
            mend = f"is it on? then there: {_open_port(peer.address.port)}"
            return problem(CHECK, words, mend, passing=True)
        case Outcome.AWAY:
            words = f"{peer}: {peer.words}: the machine is off, or has another address"
            return problem(CHECK, words, "switch it on; there: ip address", passing=True)
        case Outcome.MUTE:
            words = f"{peer}: {peer.words}: a node that waits for its trainer does so"
            mend = f"there: p2psgd status; if it is no node: sudo ss -ltnp 'sport = :{peer.address.port}'"
            return problem(CHECK, words, mend, passing=True)
        case Outcome.UNTRIED:
            return problem(
                CHECK, f"{peer} was not tried in this time", "a longer --wait SECONDS", passing=True
            )
        case _:
            return problem(CHECK, f"{peer}: {peer.words}", _mend_of(peer))


def _mend_of(peer: Peer) -> str:
    host, port = peer.address.host, peer.address.port
    match peer.outcome:
        case Outcome.UNRESOLVED:
            return f"correct the line, or make the name known: getent hosts {host}"
        case Outcome.UNREACHABLE:
            return f"is the network up? ip address; ip route get {host}"
        case Outcome.TLS:
            return "start all with --tls DIR, with certificates of one CA: p2psgd ca check DIR"
        case _:
            return f"there: sudo ss -ltnp 'sport = :{port}' tells what listens"


def _open_port(port: int) -> str:
    return f"sudo ufw allow {port}/tcp, or the cloud's security group: TCP {port} in"
