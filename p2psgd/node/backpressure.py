"""Back-pressure on the trainer: link speeds, stalls and their events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from p2psgd.base import formatting
from p2psgd.core.frontier import Origin, name_node
from p2psgd.core.replica import Replica
from p2psgd.observe.status import SlowLinkStatus, StallStatus
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# Does every peer take as much as all origins make? If not, no log lasts for ever, and a person must know.
#
# Both are measured over the last three failure timeouts: the updates that this node applied, its own and
# peers', are what is made; the growth of the sum of a peer's acknowledgements is what it takes. A peer that
# is merely behind and catches up takes more than is made, and is not slow.


WINDOW_TIMEOUTS: Final = 3
LOOKS_PER_TIMEOUT: Final = 5  # as often as peers acknowledge
MADE_MIN: Final = 5  # updates in the window: of fewer, each of which takes seconds, one or two are under way
SLOW_BELOW: Final = 0.9  # of what is needed; acknowledgements come in steps of a fifth of a failure timeout


class _Look(NamedTuple):
    now: float
    applied: int  # updates of all origins
    applied_bytes: int
    acknowledged: Mapping[int, int]  # updates of all origins, by node


class LinkSpeeds:
    """Samples of what all origins make and each peer takes, several a failure timeout; at most 16
    are kept.
    """

    def __init__(self, *, failure_timeout_s: float) -> None:
        self._failure_timeout_s = failure_timeout_s
        self._looks: deque[_Look] = deque(maxlen=WINDOW_TIMEOUTS * LOOKS_PER_TIMEOUT + 1)

    def look(self, now: float, *, applied: int, applied_bytes: int, acknowledged: Mapping[int, int]) -> None:
        """Take a sample if one is due.

        `applied`: the sum of the own frontier's sequences, `applied_bytes` that of the frames applied since
        the start; `acknowledged`: the sum of each linked peer's frontier, by node id.
        """
        if not self._looks or now - self._looks[-1].now >= self._failure_timeout_s / LOOKS_PER_TIMEOUT:
            self._looks.append(_Look(now, applied, applied_bytes, dict(acknowledged)))

    def slow(self, names: Mapping[int, str]) -> list[SlowLinkStatus]:
        """Return the peers that were linked all the time, lack more than is made in a failure timeout, and
        take less than is made.
        """
        if len(self._looks) < (self._looks.maxlen or 0):
            return []
        first, last = self._looks[0], self._looks[-1]
        seconds, made = last.now - first.now, last.applied - first.applied
        if made < MADE_MIN:
            return []
        bytes_each = (last.applied_bytes - first.applied_bytes) / made
        slow = []
        for node, before in first.acknowledged.items():
            after = last.acknowledged.get(node)
            if after is None or any(node not in look.acknowledged for look in self._looks):
                continue
            behind = last.applied - after > made / WINDOW_TIMEOUTS
            if behind and after - before < SLOW_BELOW * made:
                needed, available = made * bytes_each / seconds, (after - before) * bytes_each / seconds
                slow.append(
                    SlowLinkStatus(
                        node=name_node(node, names), id=f"{node:016x}", needed=needed, available=available
                    )
                )
        return slow


# ----------------------------------------------------------------------------
# The stall of this node's own trainer, its reason and its start; its beginning and its end are events.


class Events(Protocol):
    """The node's event log."""

    def write(self, kind: str, words: str, node: int | None = None, **figures: float) -> None: ...


class Stall:
    """The stall of a node's trainer, updated again and again; the reason may change while it lasts."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._words = ""
        self._since = 0.0

    def update(self, words: str, now: float) -> None:
        """Begin, go on with or end the stall. `words`: why the trainer is held up at `now` (seconds,
        monotonic), empty if it is not.
        """
        if words and not self._words:
            self._since = now
            self._events.write("stall", f"the trainer is held up: {words}")
        elif self._words and not words:
            lasted_s = now - self._since
            how_long = formatting.duration(lasted_s) if lasted_s >= 1 else "less than a second"
            sentence = f"the trainer goes on after {how_long}"
            self._events.write("stall", sentence, seconds=round(lasted_s, 3))
        self._words = words

    def figures(self, now: float) -> StallStatus | None:
        """Return the stall for the status; None while the trainer is not held up."""
        return StallStatus(words=self._words, since_s=now - self._since) if self._words else None


# ----------------------------------------------------------------------------
# Backpressure: a node's trainer makes no more than the network and the peers take, and nothing before the
# node is ready.


class HeldTrainer(Protocol):
    """The node's trainer, as far as it can be held up."""

    def pause_outbox(self, *, paused: bool) -> None: ...

    def readiness_changed(self) -> None:
        """Let a trainer attach that waits, or send it the reason why not."""
        ...


class Backpressure:
    """The backpressure on the trainer of one node. `congested`: the trainer waits for peers that are all far
    behind; `draining`: it has ended, and all that it made is taken.
    """

    def __init__(
        self, replica: Replica, trainer: HeldTrainer, events: Events, *, now: Callable[[], float]
    ) -> None:
        """Take `now`, the clock that the replica goes by."""
        self.congested = False
        self.draining = False
        self._replica = replica
        self._trainer = trainer
        self._now = now
        self.stall = Stall(events)
        self.replica_replaced()
        self._told_ready = False
        self._in_rounds = parse_mode(replica.spec.mode).rounds

    @property
    def held_up(self) -> bool:
        """Return whether the trainer must wait for others."""
        return not self._replica.ready or self._replica.retention.stalled

    def regulate(self) -> None:
        """Let the trainer go on, or hold it up."""
        self.congested = not self.draining and self._replica.congested(self._now())
        waits = not self.draining and self.held_up
        # in rounds the trainer contributes to one round at a time, and waits until the round is complete
        owners = self._replica.owners
        ahead = owners is not None and owners.full and not self.draining
        self._trainer.pause_outbox(paused=not self._in_rounds and (self.congested or waits or ahead))
        self.stall.update(self._replica.waiting_for() if waits else "", self._now())
        if not (self._replica.ready and self._told_ready):
            self._told_ready = self._replica.ready
            self._trainer.readiness_changed()

    def look_at_links(self) -> None:
        """Measure what each peer takes, against what all origins make."""
        self._speeds.look(
            self._now(),
            applied=self._replica.updates_applied,
            applied_bytes=self._replica.tally.bytes_applied,
            acknowledged=self._replica.applied_by_peers(),
        )

    def replica_replaced(self) -> None:
        """Measure anew after a snapshot has replaced the replica: what came with it was not made just now."""
        self._speeds = LinkSpeeds(failure_timeout_s=self._replica.timing.failure_timeout_s)

    def slow_links(self) -> list[SlowLinkStatus]:
        """Return the peers that take less than is made."""
        return self._speeds.slow(self._replica.names)


# ----------------------------------------------------------------------------
# Are the links still sending what was made before? Then what a trainer sends now would only wait in a queue,
# and it may add up several steps instead.
#
# A node's links share its uplink, so all should have sent the last update before the next one comes. But one
# peer with a slow link must not hold up the others. So once half of the links have sent it, the rest have as
# long again. Where they share an uplink evenly or not, that is enough: with the others through, a link has
# all of it. What a slower peer has not got by then stays in the log and follows.


LOOK_S: Final = 0.01  # between two looks while they are: the trainer's next step may be as short
LOOK_PEER_S: Final = 1e-4  # more for each peer: a look takes two microseconds for it


class ShownTrainer(Protocol):
    """The node's trainer, as far as it is shown the links."""

    def show_links(self, *, busy: bool) -> None: ...


class BusyLinks:
    """Shows the trainer whether the links are busy with what it has sent.

    `unsent_bytes`: what a peer was sent and has not left this machine; `call_later` as of a loop, whose clock
    is `now`.
    """

    def __init__(
        self,
        replica: Replica,
        trainer: ShownTrainer,
        *,
        unsent_bytes: Callable[[Origin], int],
        call_later: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._trainer = trainer
        self._unsent_bytes = unsent_bytes
        self._call_later = call_later
        self._now = now
        self._looks_again = False
        self._sent_at = 0.0
        self._half_took_s: float | None = None  # from then, until half of the links had sent it

    def update_made(self) -> None:
        """Look after an update, and again and again while links are busy with it."""
        self._sent_at, self._half_took_s = self._now(), None
        self._look()

    def _look(self) -> None:
        busy = self._are_busy()
        self._trainer.show_links(busy=busy)
        if busy and not self._looks_again:
            self._looks_again = True
            self._call_later(LOOK_S + LOOK_PEER_S * len(self._replica.peers), self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self._look()

    def _are_busy(self) -> bool:
        following = [peer.origin for peer in self._replica.peers.values() if peer.caught_up and not peer.feed]
        sending = sum(self._unsent_bytes(peer) > 0 for peer in following)
        if not sending:
            return False
        if sending > len(following) // 2:
            return True
        took_s = self._now() - self._sent_at
        if self._half_took_s is None:
            self._half_took_s = took_s
        return took_s < 2 * self._half_took_s
