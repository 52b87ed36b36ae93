"""A run's CA for a test, and what its nodes need: real certificates, also such as no node should have."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from p2psgd.cli.ca_authority import create_authority
from p2psgd.net.tls import Credentials

NOW: Final = datetime.now(UTC)
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)


class Certificates:
    """The CA of a run, in a directory of its own below `path`. Every node has one certificate."""

    def __init__(self, path: Path, run: str = "tested") -> None:
        self.authority = create_authority(path / f"ca-{run}", run, now=NOW)
        self._directories: dict[str, Path] = {}
        self._credentials: dict[str, Credentials] = {}

    def directory(self, name: str, *, node: int | None = None, now: datetime = NOW, days: int = 365) -> Path:
        """The TLS directory of a node."""
        if name not in self._directories:
            issued = self.authority.issue(name, node=node, now=now, days=days)
            self._directories[name] = issued.directory
        return self._directories[name]

    def options(self, name: str) -> tuple[str, str]:
        """What starts a daemon with it."""
        return "--tls", str(self.directory(name))

    def credentials(self, name: str, *, node: int | None = None) -> Credentials:
        """Loaded as a daemon does."""
        if name not in self._credentials:
            self._credentials[name] = Credentials.load(self.directory(name, node=node))
        return self._credentials[name]

    def client(self, name: str, *, node: int | None = None) -> ssl.SSLContext:
        """For a hand-made peer that behaves."""
        return self.credentials(name, node=node).context(dialled=True)


def careless(directory: Path | None, *, ca: Path | None = None) -> ssl.SSLContext:
    """A client that shows whatever certificate is there, None: none, and accepts every server, or those of a
    CA.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED
    if ca is not None:
        context.load_verify_locations(ca)
    if directory is not None:
        context.load_cert_chain(directory / "node.pem", directory / "node.key")
    return context
