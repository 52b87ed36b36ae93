"""Checks that take other machines: reachability, routes, speeds, versions, clocks and the run."""

from __future__ import annotations

import errno
import ipaddress
import platform
import socket
import statistics
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

import p2psgd
from p2psgd import formatting
from p2psgd.cli.doctor.findings import Finding, note, ok, problem
from p2psgd.cli.doctor.messages import Facts, Outcome
from p2psgd.cli.doctor.session import Clock, Peer
from p2psgd.errors import words_of
from p2psgd.net.address import Address
from p2psgd.net.handshake import DOCTOR, RUN_UNKNOWN, describe_difference
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello

# ----------------------------------------------------------------------------
# Is every peer's port reached from here, and this one's from there? What says which, and what to look at.


REACH: Final = "reach"
START: Final = "start it there: p2psgd doctor with the same options, or p2psgd node"


def check_peer(peer: Peer, listen: Address, *, daemon_here: bool) -> list[Finding]:
    """Both ways between this machine and one line; `daemon_here`: a node has this machine's port."""
    match peer.outcome:
        case Outcome.ITSELF:
            return [note(REACH, f"{peer} leads to this machine itself")]
        case Outcome.NODE:
            return _check_node(peer, listen, daemon_here=daemon_here)
        case Outcome.DOCTOR:
            return [_check_way_back(peer, listen)]
        case Outcome.LEFT:
            return [problem(REACH, f"{peer}: {peer.words}", START, passing=True)]
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
                    REACH, words, "leave one of the two lines in the list of hosts, or give each its node"
                )
            )
        first.setdefault(peer.node, peer)
    return found


def check_visitors(visitors: Mapping[str, str]) -> list[Finding]:
    """Who came that the list does not name."""
    return [
        note(REACH, f"{words} came from {host}, which no line leads to", "add its line to the list of hosts")
        for host, words in visitors.items()
    ]


def _check_node(peer: Peer, listen: Address, *, daemon_here: bool) -> list[Finding]:
    words = peer.words
    if peer.other_run:
        return [problem("run", f"{peer}: {words}", "give this doctor and that node the same --recipe")]
    if peer.reaches_us:
        return [ok(REACH, f"{peer} is reached, and reaches this machine; {words}")]
    if daemon_here:
        return [ok(REACH, f"{peer} is reached; {words}; `p2psgd status` tells whether the two are linked")]
    unknown = f"{peer} is reached; {words}; whether it reaches this machine was not shown: it did not dial"
    mend = f"start the node here, then there: nc -zv THIS_MACHINE {listen.port}; if that fails, here: "
    return [note(REACH, unknown, mend + _open_port(listen.port))]


def _check_way_back(peer: Peer, listen: Address) -> Finding:
    match peer.reaches_us:
        case True:
            return ok(REACH, f"{peer} is reached, and reaches this machine")
        case False:
            words = f"{peer} is reached, but does not reach this machine: {peer.their_words}"
            return problem(REACH, words, f"here: {_open_port(listen.port)}")
        case _:
            words = f"{peer} is reached; it had not found out whether it reaches this machine when it ended"
            return note(REACH, words, "run all doctors once more, at about the same time")


def _check_way_there(peer: Peer) -> Finding:
    """It is there, and its port is not reached."""
    words = f"{peer} reaches this machine, but is not reached from here: {peer.words}"
    match peer.outcome:
        case Outcome.SILENT | Outcome.AWAY | Outcome.REFUSED:
            mend = f"there: {_open_port(peer.address.port)}; and does this line name its address and port?"
            return problem(REACH, words, mend)
        case _:
            return problem(REACH, words, _mend_of(peer))


def _not_come(peer: Peer) -> Finding:
    match peer.outcome:
        case Outcome.REFUSED:
            return problem(REACH, f"{peer}: connection refused, nothing listens there", START, passing=True)
        case Outcome.SILENT:
            words = f"{peer}: {peer.words}: the machine is off, or a firewall drops what is sent to it"
            mend = f"is it on? then there: {_open_port(peer.address.port)}"
            return problem(REACH, words, mend, passing=True)
        case Outcome.AWAY:
            words = f"{peer}: {peer.words}: the machine is off, or has another address"
            return problem(REACH, words, "switch it on; there: ip address", passing=True)
        case Outcome.MUTE:
            words = f"{peer}: {peer.words}: a node that waits for its trainer does so"
            mend = f"there: p2psgd status; if it is no node: sudo ss -ltnp 'sport = :{peer.address.port}'"
            return problem(REACH, words, mend, passing=True)
        case Outcome.UNTRIED:
            return problem(
                REACH, f"{peer} was not tried in this time", "a longer --wait SECONDS", passing=True
            )
        case _:
            return problem(REACH, f"{peer}: {peer.words}", _mend_of(peer))


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


# ----------------------------------------------------------------------------
# Which way the kernel sends packets to an address: asked over rtnetlink [RFC 3549], as `ip route get`.


_MESSAGE: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ROUTE: Final = struct.Struct(
    "=BBBBBBBBI"
)  # rtmsg; the second byte is the length of the destination's prefix
_ATTRIBUTE: Final = struct.Struct("=HH")
_GET_ROUTE, _NEW_ROUTE, _ERROR, _REQUEST = 26, 24, 2, 1
_TO, _INTERFACE, _GATEWAY, _SOURCE = 1, 4, 5, 7
_LOCAL: Final = 2  # RTN_LOCAL
_FIB_MATCH: Final = 0x2000  # the route as it stands in the table, Linux 4.13
ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Route:
    """`prefix_bits` of the destination are what the route is for: 0 is the default route. `gateway` is empty
    if the address is on the link itself; `local`: it is this machine's own.
    """

    interface: str
    source: str
    gateway: str
    prefix_bits: int
    local: bool

    def why(self, host: str) -> str:
        """The reason, in a few words."""
        if self.local:
            return "an address of this machine"
        if self.gateway:
            kind = "the default route" if self.prefix_bits == 0 else f"a route to /{self.prefix_bits}"
            return f"by {kind}, over {self.gateway}"
        return f"its network is on that interface, {_network(host, self.prefix_bits)}"


def find_route(host: str) -> Route:
    """The way to a numeric address; OSError if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    chosen = _ask(host, family, 0)
    table = _ask(host, family, _FIB_MATCH)
    source = chosen.attributes.get(_SOURCE)
    index = chosen.attributes.get(_INTERFACE, b"")
    return Route(
        interface=_name(index),
        source=_source(host, family) if source is None else socket.inet_ntop(family, source),
        gateway=socket.inet_ntop(family, chosen.attributes[_GATEWAY])
        if _GATEWAY in chosen.attributes
        else "",
        prefix_bits=table.prefix_bits,
        local=chosen.kind == _LOCAL,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """An RTM_NEWROUTE."""

    prefix_bits: int
    kind: int
    attributes: dict[int, bytes]


def _ask(host: str, family: int, flags: int) -> _Answer:
    address = socket.inet_pton(family, host.partition("%")[0])
    body = _ROUTE.pack(family, 8 * len(address), 0, 0, 0, 0, 0, 0, flags)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address), _TO) + address
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(1.0)
        netlink.send(_MESSAGE.pack(_MESSAGE.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body)
        return _parse(netlink.recv(ANSWER_BYTES_MAX))


def _parse(data: bytes) -> _Answer:
    length, kind, *_ = _MESSAGE.unpack_from(data)
    if kind == _ERROR:
        (code,) = struct.unpack_from("=i", data, _MESSAGE.size)
        raise OSError(-code, "no route")
    if kind != _NEW_ROUTE:
        raise OSError(f"an answer of type {kind}")
    fields = _ROUTE.unpack_from(data, _MESSAGE.size)
    attributes: dict[int, bytes] = {}
    place = _MESSAGE.size + _ROUTE.size
    while place + _ATTRIBUTE.size <= length:
        size, name = _ATTRIBUTE.unpack_from(data, place)
        if size < _ATTRIBUTE.size:
            break
        attributes[name] = data[place + _ATTRIBUTE.size : place + size]
        place += (size + 3) & ~3
    return _Answer(fields[1], fields[7], attributes)


def _name(index: bytes) -> str:
    try:
        return socket.if_indextoname(struct.unpack("=I", index)[0])
    except (OSError, struct.error):
        return "?"


def _source(host: str, family: int) -> str:
    """As a socket gets it."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _network(host: str, bits: int) -> str:
    return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{bits}", strict=False))


# ----------------------------------------------------------------------------
# By which interface and with which address of its own this machine speaks to its peers, and why.


ROUTE: Final = "route"
NAMED_MAX: Final = 4  # peers, in one line


def check_routes(peers: Sequence[Peer], listen: Address) -> list[Finding]:
    """A line for each way out, with those that are reached by it."""
    found: list[Finding] = []
    ways: dict[tuple[str, str, str], list[str]] = {}
    for peer in peers:
        if not peer.hosts:
            continue
        host = peer.hosts[0]
        try:
            route = find_route(host)
        except OSError as error:
            found.append(_no_route(peer, host, error))
            continue
        ways.setdefault((route.interface, route.source, route.why(host)), []).append(str(peer.address))
        if clash := _listens_elsewhere(peer, route, listen):
            found.append(clash)
    for (interface, source, why), names in ways.items():
        more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
        whom = formatting.listed([*names[:NAMED_MAX], *more])
        found.append(ok(ROUTE, f"{whom}: from {source} by {interface} ({why})"))
    return found


def _no_route(peer: Peer, host: str, error: OSError) -> Finding:
    words = f"this machine knows no way to {peer.address}"
    if host not in str(peer.address):
        words += f", which is {host}"
    if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        words += f": {words_of(error)}"
    return problem(ROUTE, words, f"is the network up? ip address; ip route get {host}")


def _listens_elsewhere(peer: Peer, route: Route, listen: Address) -> Finding | None:
    """A node that listens on an address to which its peers have no way."""
    try:
        own = ipaddress.ip_address(listen.host)
    except ValueError:
        return None
    if not own.is_loopback or ipaddress.ip_address(route.source.partition("%")[0]).is_loopback:
        return None
    words = f"this node listens on {listen}, which {peer.address} cannot reach: it is for this machine alone"
    return problem(ROUTE, words, f"--listen 0.0.0.0:{listen.port}, or {route.source}:{listen.port}")


# ----------------------------------------------------------------------------
# Is the same p2psgd installed everywhere?


VERSION: Final = "versions"


def describe_own() -> Finding:
    """What runs here."""
    parts = (
        f"p2psgd {p2psgd.__version__}, protocol {PROTOCOL_VERSION}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
        f"Linux {platform.release()} on {platform.machine()}",
    )
    return ok(VERSION, ", ".join(parts))


def compare_versions(name: str, ours: Facts, theirs: Facts) -> Finding | None:
    """None if nothing differs that could matter."""
    if theirs.version != ours.version:
        words = f"p2psgd {theirs.version} on {name}, {ours.version} here"
        return problem(
            VERSION,
            words,
            f"install the same on both: pip install p2psgd=={max(theirs.version, ours.version)}",
        )
    if (theirs.python, theirs.numpy) != (ours.python, ours.numpy):
        words = f"{name} has Python {theirs.python} and numpy {theirs.numpy}: no matter for p2psgd"
        return note(VERSION, f"{words}; a script of your own may care")
    return None


# ----------------------------------------------------------------------------
# Do the machines agree about the time? Training does not need it; certificates, `--seconds` and logs do.


CLOCK: Final = "clock"
NOTED_S: Final = 1.0
WRONG_S: Final = 60.0
MEND: Final = "on the one that is wrong: sudo timedatectl set-ntp true; timedatectl"


def compare_clocks(name: str, clock: Clock) -> Finding | None:
    """None if they agree within NOTED_S, as far as that can be seen through the round trip."""
    surely_s = max(0.0, abs(clock.ahead_s) - clock.round_trip_s / 2)
    if surely_s <= NOTED_S:
        return None
    side = "ahead of" if clock.ahead_s > 0 else "behind"
    shown = formatting.duration(surely_s) if surely_s >= 10 else f"{surely_s:.1f} s"
    words = f"the clock of {name} is {shown} {side} this one"
    if surely_s > WRONG_S:
        return problem(CLOCK, f"{words}: certificates begin and end at other times there", MEND)
    return note(CLOCK, words, MEND)


def describe_agreement(clocks: list[Clock]) -> str:
    """How close all of them are, for people."""
    most_s = max(abs(clock.ahead_s) + clock.round_trip_s / 2 for clock in clocks)
    return f"{formatting.counted(len(clocks), 'peer')} within {milliseconds(most_s)} of this machine's"


def milliseconds(seconds: float) -> str:
    """Two significant digits below 10 ms."""
    ms = 1e3 * seconds
    return f"{ms:.2f} ms" if ms < 1 else f"{ms:.1f} ms" if ms < 10 else f"{ms:,.0f} ms"


# ----------------------------------------------------------------------------
# What the links carry, and what that means for a run.


LINK: Final = "link"
SLOW: Final = 1 / 4  # of what the others carry: a bad cable, a shared or shaped port


def describe_links(peers: Sequence[Peer]) -> list[Finding]:
    """A line for each peer that was measured."""
    rates = [rate for peer in peers for rate in (peer.sent_rate, peer.received_rate) if rate]
    usual = statistics.median(rates) if rates else 0.0
    found = []
    for peer in peers:
        sent, received, clock = peer.sent_rate, peer.received_rate, peer.clock
        if clock is None:
            continue
        words = f"{peer}: round trip {milliseconds(clock.round_trip_s)}"
        if sent is None or received is None:
            found.append(note(LINK, f"{words}; what it carries was not measured, the machines were busy"))
            continue
        words += f", {bits(sent)} there, {bits(received)} back"
        if min(sent, received) < SLOW * usual:
            words += f"; others carry {bits(usual)}"
            found.append(
                note(LINK, words, "look at its cable or port (ethtool eth0), and at what else uses it")
            )
        else:
            found.append(ok(LINK, words))
    return found


def predict(weights: int, peers: Sequence[Peer], *, half: bool = False) -> Finding | None:
    """How long what is large takes at the slowest rate measured; None if none was."""
    rates = [rate for peer in peers for rate in (peer.sent_rate, peer.received_rate) if rate]
    if not rates:
        return None
    slowest, nodes = min(rates), len(peers) + 1
    snapshot_s = 4 * weights / slowest
    round_s = 2 * (nodes - 1) / nodes * (2 if half else 4) * weights / slowest
    sizes = f"{weights:,} weights take {seconds(snapshot_s)} as a snapshot"
    words = f"at {bits(slowest)}, the least measured, {sizes}"
    return note(LINK, f"{words}, and {seconds(round_s)} for a dense ring's round of {nodes} nodes")


def bits(bytes_per_s: float) -> str:
    """A rate as networks are sold."""
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if 8 * bytes_per_s >= scale:
            return (
                f"{8 * bytes_per_s / scale:.3g} {unit}"
                if 8 * bytes_per_s < 999.5 * scale
                else (f"{8 * bytes_per_s / scale:,.0f} {unit}")
            )
    return f"{8 * bytes_per_s:.0f} bit/s"


def seconds(value: float) -> str:
    """As short as it makes sense."""
    return (
        formatting.duration(value) if value >= 10 else f"{value:.2g} s" if value >= 1 else milliseconds(value)
    )


# ----------------------------------------------------------------------------
# Do all nodes train the same run, from the same list of hosts?


RUN: Final = "run"


def compare_runs(name: str, ours: Hello, theirs: Hello) -> Finding | None:
    """None if they are the same, or one does not know its own."""
    if RUN_UNKNOWN in (ours.run, theirs.run) or ours.run == theirs.run:
        return None
    words = describe_difference(_plain(ours), _plain(theirs.model_copy(update={"name": name})))
    return problem(RUN, words, "the same recipe file, and the same data, on both: sha256sum RECIPE")


def compare_hosts(name: str, ours: Facts, theirs: Facts) -> Finding | None:
    """None if the lists are the same."""
    if ours.hosts == theirs.hosts:
        return None
    words = f"{name} has another list of hosts, or another order: shares of the data go by the place in it"
    return note("hosts", words, "copy the same file to all machines, or give each trainer its --share i/n")


def _plain(hello: Hello) -> Hello:
    """With the mode of its run."""
    mode = hello.mode.removeprefix(DOCTOR).strip()
    return hello.model_copy(update={"mode": mode or "unknown"})


# ----------------------------------------------------------------------------
# What all machines must have alike: p2psgd, the run, the list of hosts, and about the time.


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
