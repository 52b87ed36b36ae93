"""What a node has to say: each sentence goes to its log and its event log, alarms to its status as well."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from p2psgd.ops.event_log import EventLog

ALARMS_MAX: Final = 20  # the latest; all are in the log
PEER_ALARMS_MAX: Final = 10  # of these: a peer that lies can cause one after the other

log = logging.getLogger("p2psgd.node")


class Journal:
    """One node's."""

    def __init__(self, state: Path) -> None:
        self.events = EventLog(state)
        self._alarms: list[tuple[str, bool]] = []  # and whether a peer has caused it

    @property
    def alarms(self) -> list[str]:
        """The latest, oldest first."""
        return [words for words, _ in self._alarms]

    def alarm(self, words: str, node: int | None = None) -> None:
        """Something that a person should look at; `node`: the peer that has caused it."""
        log.error("%s", words, extra={"fields": {"kind": "alarm", **self.events.about(node)}})
        by_peers = [each for each in self._alarms if each[1]]
        if node is not None and len(by_peers) >= PEER_ALARMS_MAX:
            self._alarms.remove(by_peers[0])
        self._alarms = [*self._alarms, (words, node is not None)][-ALARMS_MAX:]
        self.events.write("alarm", words, node)

    def settle(self, words: str) -> None:
        """What this alarm told of is mended: the status no longer shows it, the log does."""
        self._alarms = [alarm for alarm in self._alarms if alarm[0] != words]

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        """Something has become different, with `node`: for that peer."""
        log.info("%s", words, extra={"fields": {"kind": kind, **self.events.about(node)}})
        self.events.write(kind, words, node)
