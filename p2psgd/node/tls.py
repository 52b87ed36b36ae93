"""The TLS credentials of a running node: loaded at the start, again on SIGHUP or when the files have changed,
watched for their end.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from p2psgd.base.aio import in_daemon_thread
from p2psgd.base.errors import UsageError
from p2psgd.net.tls import Credentials, ExpiryWatch, describe_expiry
from p2psgd.node.options import NodeOptions
from p2psgd.observe.status import TlsStatus
from p2psgd.storage.event_log import NodeLog

LOOK_S: Final = 10.0  # files are taken when they have changed between two looks, and not between the next two
AGAIN_LOOKS: Final = 60  # and tried again so often, as a certificate may be valid only from a minute later


class NodeTls:
    """The TLS credentials of a node. `credentials` is None in plaintext; `node` and `name` come from the
    certificate, or else from the command line.
    """

    def __init__(self, options: NodeOptions) -> None:
        """Load the credentials; UsageError if the TLS directory cannot be used, or is another node's."""
        self.credentials = None if options.tls is None else Credentials.load(options.tls)
        self.node = None if self.credentials is None else self.credentials.node
        self.name = options.name if self.credentials is None else self.credentials.name
        if options.name not in (None, self.name):
            raise UsageError(
                f"--name {options.name!r:.80} is not the name in this node's certificate: leave it out, and "
                f"it is called {self.name}"
            )
        self._insecure = options.insecure_plaintext
        self._watch = ExpiryWatch()
        self._trouble = ""
        self._warning = ""

    @property
    def words(self) -> str:
        """Return the words about TLS for the line that reports a start."""
        if self.credentials is not None:
            return f" with TLS for run {self.credentials.run}"
        return " in PLAINTEXT (--insecure-plaintext)" if self._insecure else ""

    def reload(self, node_log: NodeLog) -> None:
        """Have new links use what the files hold now; links that are there go on."""
        if self.credentials is None:
            return
        before = self._trouble
        try:
            self.credentials.reload()
        except UsageError as error:
            self._trouble = f"the certificates were not reloaded, the old ones stay in use: {error}"
            if self._trouble != before:
                node_log.settle(before)
                node_log.alarm(self._trouble)
        else:
            node_log.settle(before)
            self._trouble = ""
            node_log.settle(self._warning)
            node_log.note(
                "certificate",
                f"certificates reloaded, valid until {self.credentials.expires:%Y-%m-%d %H:%M} UTC",
            )

    async def watch_files(self, node_log: NodeLog) -> None:
        """Reload, again and again, when the files have changed and are no longer written to; and every
        AGAIN_LOOKS looks what could not be used. A disk that does not answer holds up this task alone.
        """
        if self.credentials is None:
            return
        seen, looks = self.credentials.taken, 0
        while True:
            await asyncio.sleep(LOOK_S)
            before, seen = seen, await in_daemon_thread("tls-files", self.credentials.stamps)
            looks = looks + 1 if self._trouble else 0
            if seen == before != self.credentials.taken or looks >= AGAIN_LOOKS:
                looks = 0
                self.reload(node_log)

    def look_at_expiry(self, node_log: NodeLog) -> None:
        """Warn when it is time to, once a day."""
        if self.credentials is None:
            return
        words = self._watch.due(self.credentials.expires, datetime.now(UTC))
        if words:
            node_log.settle(self._warning)
            self._warning = words
            node_log.alarm(words)

    def status(self) -> TlsStatus | None:
        """Return the TLS part of the node's status; None in plaintext."""
        held = self.credentials
        if held is None:
            return None
        now = datetime.now(UTC)
        return TlsStatus(
            run=held.run,
            expires=held.expires.isoformat(timespec="seconds"),
            expires_s=round((held.expires - now).total_seconds()),
            trouble=self._trouble or describe_expiry(held.expires, now),
        )
