"""What a node has to say: each sentence goes to its log and its event log, alarms to its status as well."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from p2psgd.ops.event_log import EventLog

ALARMS_MAX: Final = 20  # the latest; all are in the log

log = logging.getLogger("p2psgd.node")


class Journal:
    """One node's; `alarms` are the latest, oldest first."""

    def __init__(self, state: Path) -> None:
        self.alarms: list[str] = []
        self.events = EventLog(state)

    def alarm(self, words: str) -> None:
        """Something that a person should look at."""
        log.error("%s", words, extra={"fields": {"kind": "alarm"}})
        self.alarms = [*self.alarms, words][-ALARMS_MAX:]
        self.events.write("alarm", words)

    def settle(self, words: str) -> None:
        """What this alarm told of is mended: the status no longer shows it, the log does."""
        self.alarms = [alarm for alarm in self.alarms if alarm != words]

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        """Something has become different, with `node`: for that peer."""
        log.info("%s", words, extra={"fields": {"kind": kind, **self.events.about(node)}})
        self.events.write(kind, words, node)
