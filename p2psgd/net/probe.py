"""Measures a node's links, for a ring whose order goes by that: what a round trip takes, and what they carry.

It asks with frames that are answered at once, small ones and then larger ones. What a ring waits for is a
segment's way from one daemon to the other, so that is what is timed. The kernel's figures of a connection are
those of its last few packets, and for what a shaper lets pass at once they are far too high.

A link gets less than 1 MiB of questions when it has come up, and again from time to time while no ring runs.
One link at a time, and not while another node measures its link to this one, if that is soon over: two that
share a cable would each find half of it. Nothing is sent in a run whose order goes by node ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from p2psgd.core.events import LinkMeasured
from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PROBE_PADDING_MAX, Body
from p2psgd.wire.ring_messages import pack_probe, parse_probe

# Bytes of padding, 848 KiB in all. The best of several counts: whatever comes between only adds time.
QUESTIONS: Final = (*(1,) * 4, 16 * 1024, 64 * 1024, *(PROBE_PADDING_MAX,) * 3)
# A larger question follows an answer that came within this part of a patience: it takes about four times as
# long, and no STATUS, five of which are due in a patience, waits behind it for more than another one.
PROMPT: Final = 1 / 50
QUIET: Final = 1 / 50  # of a patience, without a question from others, before this node begins
YIELDED_MAX: Final = 1 / 2  # of a patience: then it begins all the same


class ProbedLinks(Protocol):
    """What the mesh does for it."""

    def send(self, peer: Origin, frame: bytes) -> None: ...
    def takes_more(self, peer: Origin) -> bool: ...


@dataclass(slots=True)
class _Probe:
    """A link that is being measured: the question that waits for an answer, and what is known so far."""

    peer: Origin
    place: int = 0  # in QUESTIONS
    sent: float = 0.0
    round_trip_s: float = math.inf
    size: int = 0  # of the largest question answered that was no small one,
    took_s: float = math.inf  # and the shortest time of those

    def learn(self, took_s: float) -> None:
        """The question under way took so long."""
        size = QUESTIONS[self.place]
        if size == QUESTIONS[0]:
            self.round_trip_s = min(took_s, self.round_trip_s)
        elif size > self.size:
            self.size, self.took_s = size, took_s
        else:
            self.took_s = min(took_s, self.took_s)

    def measured(self) -> LinkMeasured:
        """As far as it is known."""
        bytes_per_s = 0
        if self.size:
            # on a long fast link a round trip is most of it, and what is left mostly chance
            bytes_per_s = int(self.size / max(self.took_s - self.round_trip_s, self.took_s / 4, 1e-6))
        return LinkMeasured(self.peer, max(1, round(1e6 * self.round_trip_s)), bytes_per_s)


class Probing:
    """Of one node. Without `wanted` it does nothing, and refuses questions."""

    def __init__(
        self,
        links: ProbedLinks,
        tell: Callable[[LinkMeasured], object],
        *,
        timing: Timing,
        now: Callable[[], float],
        wanted: bool,
    ) -> None:
        self._links = links
        self._tell = tell
        self._timing = timing
        self._now = now
        self._wanted = wanted
        self._due: dict[Origin, float] = {}  # by linked peer
        self._fresh: set[Origin] = set()  # of those: not measured since the link came up
        self._probe: _Probe | None = None
        self._number = 0  # of the last question
        self._asked = -math.inf  # when a peer asked last

    def link_opened(self, peer: Origin) -> None:
        """Also if another connection took the place of the one before."""
        if self._wanted:
            self.link_closed(peer)
            self._due[peer] = self._now()
            self._fresh.add(peer)

    def link_closed(self, peer: Origin) -> None:
        self._due.pop(peer, None)
        self._fresh.discard(peer)
        if self._probe is not None and self._probe.peer == peer:
            self._probe = None

    def pass_time(self, *, idle: bool) -> None:
        """Measure a link if one is due; `idle`: no ring is running, so that it may be one measured before."""
        now, probe = self._now(), self._probe
        if probe is not None and now - probe.sent > self._timing.patience_s:
            if probe.round_trip_s < math.inf:
                probe.learn(now - probe.sent)  # at least
            self._end(probe)
        elif probe is None:
            self._begin(now, idle=idle)

    def hear(self, peer: Origin, body: Body) -> None:
        """A PROBE came; PeerError if it should not have."""
        if not self._wanted:
            raise PeerError("ring", "a probe came in a run that measures no links")
        now = self._now()
        number, question = parse_probe(body)
        probe = self._probe
        if question:
            self._asked = now
            if self._links.takes_more(peer):  # answers to a peer that does not read them are no use
                self._links.send(peer, pack_probe(number))
        elif probe is not None and probe.peer == peer and number == self._number:
            self._answered(probe, now - probe.sent)

    def _begin(self, now: float, *, idle: bool) -> None:
        due = [
            (at, peer)
            for peer, at in self._due.items()
            if at <= now and (idle or peer in self._fresh) and self._links.takes_more(peer)
        ]
        if not due:
            return
        since, peer = min(due)
        patience_s = self._timing.patience_s
        if now - self._asked < QUIET * patience_s and now - since < YIELDED_MAX * patience_s:
            return
        self._probe = _Probe(peer)
        self._ask(self._probe)

    def _ask(self, probe: _Probe) -> None:
        self._number += 1
        probe.sent = self._now()
        self._links.send(probe.peer, pack_probe(self._number, QUESTIONS[probe.place]))

    def _answered(self, probe: _Probe, took_s: float) -> None:
        probe.learn(took_s)
        probe.place += 1
        if probe.place == len(QUESTIONS) or (probe.size and took_s > PROMPT * self._timing.patience_s):
            self._end(probe)
        else:
            self._ask(probe)

    def _end(self, probe: _Probe) -> None:
        self._probe = None
        self._due[probe.peer] = self._now() + self._timing.gone_s
        self._fresh.discard(probe.peer)
        if probe.round_trip_s < math.inf:
            self._tell(probe.measured())
