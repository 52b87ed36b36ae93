"""All checks of one machine, in the order in which a person reads them: what can be seen here, then what
it takes others to see.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from p2psgd import formatting
from p2psgd.cli.doctor.findings import Finding, Grade, note, ok, problem
from p2psgd.cli.doctor.intended import Intended, each_host
from p2psgd.cli.doctor.local_checks import (
    check_descriptors,
    check_hosts,
    check_memory,
    check_shared_memory,
    check_state_directory,
    daemon_status,
    describe_free,
    describe_taken,
    find_available,
    load_credentials,
    own_line,
)
from p2psgd.cli.doctor.meeting import Meeting
from p2psgd.cli.doctor.peer_checks import (
    check_peer,
    check_routes,
    check_twins,
    check_visitors,
    compare,
    describe_agreement,
    describe_links,
    describe_own,
    predict,
)
from p2psgd.cli.doctor.session import Peer
from p2psgd.errors import UsageError
from p2psgd.net.address import Address, UnknownNameError, is_numeric, look_up
from p2psgd.net.hosts import read_hosts, split_own
from p2psgd.net.listen import bind, check_exposure
from p2psgd.net.tls import Credentials

RESOLVING_S: Final = 5.0
Show = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What the command line of `p2psgd doctor` says."""

    peers: Path
    listen: Address
    state: Path
    wait_s: float
    intended: Intended
    tls: Path | None = None
    insecure_plaintext: bool = False


@dataclass
class Examination:
    """Of this machine; `show` gets every finding as soon as it is there."""

    options: DoctorOptions
    show: Show
    findings: list[Finding] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """UsageError if the list of hosts cannot be read."""
        options, intended = self.options, self.options.intended
        addresses = read_hosts(options.peers)
        self._add(describe_own())
        if intended.words:
            self._add(ok("run", intended.words))
        credentials, usable = self._check_tls()
        listening, listen, daemon_here = await self._listen()
        try:
            hosts = await split_own(addresses, listen, timeout_s=RESOLVING_S)
            self._add(check_hosts(options.peers, addresses, hosts, listen))
            self._add(check_memory(intended.weights, intended.mode, find_available()))
            peers = await each_host(hosts, listen, timeout_s=RESOLVING_S)
            self._add(check_descriptors(len(peers)))
            self._add(*check_state_directory(options.state, intended.weights))
            self._add(check_shared_memory())
            if usable and peers and self._may_listen(listen, encrypted=credentials is not None):
                line = own_line(addresses, hosts)
                hello = intended.greeting(*_name_self(credentials))
                meeting = Meeting(addresses, peers, line=line, hello=hello, credentials=credentials)
                await self._meet(meeting, listening, listen, daemon_here=daemon_here)
        finally:
            if listening is not None:
                listening.close()

    def _add(self, *findings: Finding | None) -> None:
        for finding in findings:
            if finding is not None:
                self.findings.append(finding)
                self.show(finding)

    def _check_tls(self) -> tuple[Credentials | None, bool]:
        """The credentials, and whether links can be made, with TLS or as it was told without."""
        if self.options.tls is None:
            return None, True
        credentials, finding = load_credentials(self.options.tls, datetime.now(UTC))
        self._add(finding)
        return credentials, credentials is not None

    async def _listen(self) -> tuple[socket.socket | None, Address, bool]:
        """A socket, unless it cannot be had; its address; whether a node of this machine has that."""
        wanted = self.options.listen
        try:
            listening, listen = await bind(wanted)
        except UsageError as error:
            status = await asyncio.to_thread(daemon_status, self.options.state)
            finding = describe_taken(wanted, str(error), status)
            self._add(finding)
            with contextlib.suppress(UnknownNameError):
                wanted = (await look_up(wanted, timeout_s=RESOLVING_S))[0]
            return None, wanted, finding.grade is Grade.NOTE
        self._add(describe_free(listen, encrypted=self.options.tls is not None))
        return listening, listen, False

    def _may_listen(self, listen: Address, *, encrypted: bool) -> bool:
        if not is_numeric(listen):  # a name that does not resolve: it was told above
            return False
        try:
            check_exposure(listen, encrypted=encrypted, insecure=self.options.insecure_plaintext)
        except UsageError as error:
            mend = "p2psgd ca init; p2psgd ca issue NODE...; then --tls DIR here"
            self._add(problem("tls", f"no peer was met: {error}", mend))
            return False
        return True

    async def _meet(
        self, meeting: Meeting, listening: socket.socket | None, listen: Address, *, daemon_here: bool
    ) -> None:
        peers, wait_s = meeting.peers, self.options.wait_s
        listed = f"meets {formatting.counted(len(peers), 'peer')}"
        words = f"{listed}, for {wait_s:g} s at most: run it on all of them now"
        sys.stderr.write(f"p2psgd doctor: {words}\n")
        sys.stderr.flush()
        await meeting.hold(listening, wait_s=wait_s)
        self.peers, self.dropped = peers, dict(meeting.reception.dropped)
        self._add(*check_routes(peers, listen))
        for peer in peers:
            self._add(*check_peer(peer, listen, daemon_here=daemon_here))
        self._add(*check_twins(peers), *check_visitors(meeting.visitors))
        differing = compare(meeting.hello, meeting.facts, peers)
        self._add(*differing)
        clocks = [peer.clock for peer in peers if peer.clock is not None]
        if clocks and not any(each.check == "clock" for each in differing):
            self._add(ok("clock", describe_agreement(clocks)))
        self._add(*describe_links(peers))
        if self.options.intended.weights is not None:
            mode = self.options.intended.mode
            self._add(predict(self.options.intended.weights, peers, half=mode.half))
        if self.dropped:
            counts = ", ".join(f"{count} x {reason}" for reason, count in sorted(self.dropped.items()))
            self._add(note("port", f"connections that were refused: {counts}"))


def _name_self(credentials: Credentials | None) -> tuple[int, str]:
    """Id and name in the greeting: the certificate's, or an id for this once."""
    if credentials is None:
        return secrets.randbits(64), socket.gethostname()[:64] or "node"
    return credentials.node, credentials.name
