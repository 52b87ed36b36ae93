"""The examination: runs all checks of one machine, in the order in which a person reads them."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

import p2psgd
from p2psgd.base.errors import UsageError
from p2psgd.base.formatting import counted
from p2psgd.cli.doctor import local_checks as local
from p2psgd.cli.doctor.findings import Finding, exit_code, ok, problem
from p2psgd.cli.doctor.greeting import Greeter, doctor_hello
from p2psgd.cli.doctor.peer_checks import check_peers
from p2psgd.net.address import Address, UnknownNameError, is_numeric, look_up
from p2psgd.net.hosts import split_own
from p2psgd.net.listen import bind, check_exposure
from p2psgd.net.peer_sources.source import PeerSource
from p2psgd.net.tls import Credentials
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello

RESOLVING_S: Final = 5.0


@dataclass
class Examination:
    """Runs all checks with the options of the command; `show` gets each finding at once."""

    hosts: PeerSource
    listen: Address
    state: Path
    wait_s: float
    weights: int | None
    tls: Path | None
    insecure_plaintext: bool
    show: Callable[[Finding], object]
    findings: list[Finding] = field(default_factory=list)
    greeter: Greeter | None = None

    async def run(self) -> None:
        """Check what this machine shows by itself, then greet the peers.

        Raises UsageError if the list of hosts cannot be had.
        """
        addresses = await self.hosts.addresses()
        self._add(_describe_own())
        credentials: Credentials | None = None
        if self.tls is not None:
            credentials, finding = local.load_credentials(self.tls, datetime.now(UTC))
            self._add(finding)
        listening, listen, daemon_here = await self._listen()
        try:
            hosts = await split_own(addresses, listen, timeout_s=RESOLVING_S)
            peers = await local.each_host(hosts, listen, timeout_s=RESOLVING_S)
            self._add(local.check_hosts(self.hosts, addresses, hosts, listen))
            self._add(local.check_memory(self.weights, local.find_available()))
            self._add(local.check_descriptors(len(peers)))
            self._add(local.check_state_directory(self.state, self.weights))
            usable = self.tls is None or credentials is not None
            if usable and peers and self._may_listen(listen):
                self.greeter = Greeter(peers, _greeting(credentials), credentials)
                words = f"greets {counted(len(peers), 'peer')}, for {self.wait_s:g} s at most"
                sys.stderr.write(f"p2psgd doctor: {words}: run it on all of them now\n")
                sys.stderr.flush()
                await self.greeter.greet(listening, wait_s=self.wait_s)
                for finding in check_peers(self.greeter, listen, daemon_here=daemon_here):
                    self._add(finding)
        finally:
            if listening is not None:
                listening.close()

    def describe(self) -> dict[str, Any]:
        """Describe all of it for machines."""
        greeter = self.greeter
        return {
            "exit_code": int(exit_code(self.findings)),
            "findings": [asdict(each) for each in self.findings],
            "peers": [] if greeter is None else [peer.describe() for peer in greeter.peers],
            "refused": {} if greeter is None else dict(greeter.dropped),
        }

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.show(finding)

    async def _listen(self) -> tuple[socket.socket | None, Address, bool]:
        """Return a socket if it can be had, its address, and whether a node of this machine has that."""
        wanted = self.listen
        try:
            listening, listen = await bind(wanted)
        except UsageError as error:
            status = await asyncio.to_thread(local.daemon_status, self.state)
            finding, is_node = local.describe_taken(wanted, str(error), status)
            self._add(finding)
            with contextlib.suppress(UnknownNameError):
                wanted = (await look_up(wanted, timeout_s=RESOLVING_S))[0]
            return None, wanted, is_node
        how = "in PLAINTEXT" if self.tls is None else "with TLS"
        self._add(ok(local.PORT, f"{listen} is free; links are {how}"))
        return listening, listen, False

    def _may_listen(self, listen: Address) -> bool:
        if not is_numeric(listen):  # a name that does not resolve: it was reported above
            return False
        try:
            check_exposure(listen, encrypted=self.tls is not None, insecure=self.insecure_plaintext)
        except UsageError as error:
            mend = "p2psgd ca init; p2psgd ca issue NODE...; then --tls DIR here"
            self._add(problem(local.TLS, f"no peer was greeted: {error}", mend))
            return False
        return True


def _greeting(credentials: Credentials | None) -> Hello:
    """Return this doctor's HELLO: of the certificate's node, or with an id for this once."""
    if credentials is not None:
        return doctor_hello(credentials.node, credentials.name)
    return doctor_hello(secrets.randbits(64), socket.gethostname()[:64] or "node")


def _describe_own() -> Finding:
    parts = (
        f"p2psgd {p2psgd.__version__}, protocol {PROTOCOL_VERSION}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
        f"Linux {platform.release()} on {platform.machine()}",
    )
    return ok("versions", ", ".join(parts))
