"""A node's event log: events and alarms on disk, in the log and in the status, with a limit for each kind."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypedDict

from p2psgd.base.aio import TokenBuckets
from p2psgd.base.errors import ExitCode, UsageError, words_of
from p2psgd.base.formatting import printable

# ----------------------------------------------------------------------------
# How often the event log keeps what peers cause at will: a flood of it would push out everything else. Pure.
#
# Links come and go as often as a peer likes, and a peer that lies can have an alarm raised each time. Of each
# kind of such events some pass at once for each peer, and some for all of them; then one every few minutes.
# The others are counted, and the next one of the kind that passes gives their number.


# An "alarm" is one of these only where it is about a peer, as all the others are.
OF_PEERS: Final = frozenset({"link", "lost", "refused", "snapshot given", "result given", "alarm"})
PEER_BURST: Final = 8
KIND_BURST: Final = (
    64  # as many nodes as one partition may cut off: still a third of the events kept in memory
)
INTERVAL_S: Final = 300.0  # with words of full length the six kinds fill one of the two files in eleven hours


class EventLimit:
    """The limit of one event log; `held_back` counts all events that were not kept."""

    def __init__(self) -> None:
        self.held_back = 0
        self._untold: collections.Counter[str] = collections.Counter()
        self._by_peer = TokenBuckets(burst=PEER_BURST, interval_s=INTERVAL_S)
        self._by_kind = TokenBuckets(burst=KIND_BURST, interval_s=INTERVAL_S)

    def pass_on(self, kind: str, node: int | None, now: float) -> int | None:
        """Return how many events of this kind were held back since the last one that passed; None: this one
        is held back.
        """
        if node is None or kind not in OF_PEERS:
            return 0
        if self._by_peer.take(f"{kind} {node}", now) and self._by_kind.take(kind, now):
            return self._untold.pop(kind, 0)
        self.held_back += 1
        self._untold[kind] += 1
        return None


# ----------------------------------------------------------------------------
# A node's event log: what happened to it, one JSON object a line, in its state directory.
#
# Kept to 1 MiB and the 1 MiB before it, so it can neither fill a disk nor be lost by a restart. What peers
# cause at will has a limit of its own, see EventLimit. A log that cannot be written is counted and reported
# in the status, and nothing else changes: training goes on. Figures that change all the time belong into the
# status; here stand the moments when something became different.


EVENTS_NAME: Final = "events.jsonl"
EVENTS_BYTES_MAX: Final = 1024 * 1024  # of one file; there are two, this one and the one before
EVENTS_KEPT: Final = 200  # the latest, in memory
WORDS_MAX: Final = 1000  # characters
KINDS: Final = frozenset(
    {"start", "stop", "cut short", "trainer", "stall", "alarm", "checkpoint", "restored"}
    | {"link", "view", "admitted", "left", "evicted", "removed", "ready", "unready"}
    | {"snapshot given", "snapshot taken", "quarantine", "mended", "lost", "abandoned"}
    | {
        "result given",
        "given up",
        "contributions",
        "owners",
        "rule",
        "evaluation",
        "late",
        "refused",
        "certificate",
        "reload",
        "zeroconf",
    }
)

Figure = int | float | str | bool
Event = dict[str, Any]


class EventCounts(TypedDict):
    """The counts of an event log: how many events there were, and whether all of them are in the file."""

    count: int
    held_back: int
    failures: int
    trouble: str


class EventLog:
    """The event log, which appends to `events.jsonl` in the state directory `state`; when full it becomes
    `events.jsonl.1`.

    `failures` counts the events that are in memory only, `trouble` says why the last of them is. Every event
    has `time` (UTC, ISO 8601), `count` (ascending, also over restarts), `kind`, `words`, then `node` and `id`
    if it is about a peer, then its figures. `cut_short`: the last one of the incarnation before was not a
    "stop".
    """

    def __init__(
        self, state: Path, *, bytes_max: int = EVENTS_BYTES_MAX, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = state / EVENTS_NAME
        self.latest: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.failures = 0
        self.trouble = ""
        self.names: Callable[[int], str | None] = lambda _: None  # what people call a node
        self._bytes_max = bytes_max
        self._limit = EventLimit()
        self._now = now
        last = last_event(self.path)
        self._count = 0 if last is None else int(last["count"])
        self.cut_short = last is not None and last["kind"] != "stop"
        self._file: int | None = None
        self._size = 0
        self._torn = False

    def write(self, kind: str, words: str, node: int | None = None, **figures: Figure) -> None:
        """Keep one event: `kind` for machines, `words` for people, `node` the id of the peer it is about, or
        that has caused it. What peers cause too often is counted instead.
        """
        held_back = self._limit.pass_on(kind, node, self._now())
        if held_back is None:
            return
        words = words[:WORDS_MAX]
        if held_back:
            words += f" (before it {held_back:,} more of this kind were counted and not kept)"
            figures["held_back"] = held_back
        self._count += 1
        event: Event = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "count": self._count,
            "kind": kind,
            "words": words,
        }
        event |= self.about(node) | figures
        self.latest.append(event)
        try:
            self._append(json.dumps(event).encode() + b"\n")
        except OSError as error:
            self._fail(error)

    def about(self, node: int | None) -> dict[str, str]:
        """Return the name and id of the peer that an event is about; nothing if it is about none."""
        if node is None:
            return {}
        return {"node": self.names(node) or f"{node:016x}", "id": f"{node:016x}"}

    def status(self) -> EventCounts:
        """Return the status in short: how many events there were, whether all of them are in the file, and
        how many more peers have caused.
        """
        return {
            "count": self._count,
            "held_back": self._limit.held_back,
            "failures": self.failures,
            "trouble": self.trouble,
        }

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o640)
            self._size = os.fstat(self._file).st_size
            self._torn = self._size > 0 and not _ends_whole(self.path)
        if self._torn:  # what was cut off in the middle stays a line of its own, which readers skip
            line = b"\n" + line
        if self._size > 0 and self._size + len(line) > self._bytes_max:
            self.close()
            self.path.rename(older_path(self.path))
            self._append(line.lstrip(b"\n"))
            return
        written = os.write(self._file, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(0, "the disk is full")

    def _fail(self, error: OSError) -> None:
        self.failures += 1
        self.trouble = f"{self.path} cannot be written: {words_of(error)}"
        with contextlib.suppress(OSError):
            self.close()
        self._file = None


def older_path(path: Path) -> Path:
    """Return the path of the full file."""
    return path.with_name(path.name + ".1")


def parse_event(line: bytes) -> Event | None:
    """Parse a line of the file into an event, None if it is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    keys = {"time": str, "count": int, "kind": str, "words": str}
    whole = isinstance(event, dict) and all(isinstance(event.get(key), keys[key]) for key in keys)
    return event if whole else None


def last_event(path: Path) -> Event | None:
    """Return the latest event in a log, or in the full one before it; None if there is none."""
    for candidate in (path, older_path(path)):
        with contextlib.suppress(OSError):
            for line in reversed(candidate.read_bytes().splitlines()):
                event = parse_event(line)
                if event is not None:
                    return event
    return None


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


# ----------------------------------------------------------------------------
# Reading the event log, for `p2psgd events`: of a node that runs, and of one that has ended.


POLL_S: Final = 0.2
LINE_BYTES_MAX: Final = 64 * 1024  # a longer line is no event of ours


class EventReader:
    """A reader of the events in the state directory `state`; UsageError if there are none or they cannot be
    read.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self._path = state / EVENTS_NAME
        self._newest = self._open()
        self._rest = b""  # of a line that has only begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._newest.close()

    def kept(self) -> list[Event]:
        """Return all events that are kept now, oldest first; call it once, before `news`."""
        older = b""
        # The newest was opened before the older one is: else a file that fills up now could be missed.
        with contextlib.suppress(OSError), older_path(self._path).open("rb") as file:
            if not os.path.sameopenfile(file.fileno(), self._newest.fileno()):
                older = file.read()
        return [*_parse(older.split(b"\n")), *self._read()]

    def news(self) -> Iterator[Event]:
        """Yield the events that have come since then."""
        while True:
            replaced = self._is_replaced()  # looked at first: nothing is added to a file after that
            yield from self._read()
            if not replaced:
                return
            self._newest.close()
            self._newest, self._rest = self._open(), b""

    def _read(self) -> Iterator[Event]:
        *lines, rest = (self._rest + self._newest.read()).split(b"\n")
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return _parse(lines)

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            words = f"no events in {self._path.parent}: give --state the directory of a node that has run"
            raise UsageError(words, ExitCode.DATA) from None
        except OSError as error:
            reason = words_of(error)
            raise UsageError(f"cannot read {self._path}: {reason}", ExitCode.PERMISSION) from None

    def _is_replaced(self) -> bool:
        """Return whether the file was full, and the daemon has begun another."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._newest.fileno()))
        except OSError:
            return False


def follow(
    readers: Sequence[EventReader], arrivals: Callable[[], Iterable[EventReader]] = tuple
) -> Iterator[tuple[EventReader, Event]]:
    """Yield the events that come from now on, for ever, each with its reader. `arrivals` gives further
    readers, all of whose events are new.
    """
    following = [*readers]
    while True:
        for reader in arrivals():
            following.append(reader)
            yield from ((reader, event) for event in reader.kept())
        for reader in following:
            yield from ((reader, event) for event in reader.news())
        time.sleep(POLL_S)


def select_events(events: list[Event], *, kind: str | None, last: int | None) -> list[Event]:
    """Return the `last` events of one kind, None: all; `kind` None: of any kind. UsageError if there is no
    such kind.
    """
    kinds = KINDS | {event["kind"] for event in events}  # those of a later version as well
    if kind is not None and kind not in kinds:
        raise UsageError(
            f"no event is of kind {kind!r:.40}; there are: {', '.join(map(printable, sorted(kinds)))}"
        )
    chosen = [event for event in events if kind in (None, event["kind"])]
    return chosen if last is None else chosen[-last:]


def _parse(lines: list[bytes]) -> Iterator[Event]:
    return filter(None, map(parse_event, lines))


# ----------------------------------------------------------------------------
# A node's reports to people: each sentence goes to its log and its event log, alarms to its status as well.


ALARMS_MAX: Final = 20  # the latest; all are in the log
PEER_ALARMS_MAX: Final = 10  # of these: a peer that lies can cause one after the other

log = logging.getLogger("p2psgd.node")


class NodeLog:
    """The log, the event log and the alarms of one node."""

    def __init__(self, state: Path) -> None:
        self.events = EventLog(state)
        self._alarms: list[tuple[str, bool]] = []  # and whether a peer has caused it

    @property
    def alarms(self) -> list[str]:
        """Return the latest alarms, oldest first."""
        return [words for words, _ in self._alarms]

    def alarm(self, words: str, node: int | None = None) -> None:
        """Raise an alarm for something that a person should look at; `node`: the peer that has caused it."""
        log.error("%s", words, extra={"fields": {"kind": "alarm", **self.events.about(node)}})
        by_peers = [each for each in self._alarms if each[1]]
        if node is not None and len(by_peers) >= PEER_ALARMS_MAX:
            self._alarms.remove(by_peers[0])
        self._alarms = [*self._alarms, (words, node is not None)][-ALARMS_MAX:]
        self.events.write("alarm", words, node)

    def settle(self, words: str) -> None:
        """Take back an alarm whose cause is gone: the status no longer shows it, the log does."""
        self._alarms = [alarm for alarm in self._alarms if alarm[0] != words]

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        """Report that something has become different, with `node`: for that peer."""
        log.info("%s", words, extra={"fields": {"kind": kind, **self.events.about(node)}})
        self.events.write(kind, words, node)
