"""A liar: a process that passed the greeting with its own id, sends valid frames, and has no replica.

It tells what it has heard, changed by the lies of the moment (lies.py). It always acknowledges all that it
hears of, and says that its log holds none of it. With `votes` it votes as it should, from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from p2psgd.core.effects import Effect, SaveVotes, Send
from p2psgd.core.events import PeerStatus
from p2psgd.core.frontier import Origin
from p2psgd.core.paxos import Attempt, Consensus
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.timing import Timing
from p2psgd.core.view import View, Votes, parse_view
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import (
    ORIGINS_MAX,
    Accept,
    ConfirmedRow,
    FrontierRow,
    Prepare,
    SnapshotEnd,
    SnapshotRequest,
    ViewNews,
    pack_message,
)
from p2psgd.wire.reject import PeerError
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update
from tests.sim.faults import Liar as Scheme
from tests.sim.faults import Lie
from tests.sim.invariants import Inspector
from tests.sim.ledger import Ledger
from tests.sim.liar.lies import LIES, Kind
from tests.sim.liar.speaker import Told
from tests.sim.mesh import Mesh, Surroundings
from tests.sim.network import Endpoint
from tests.sim.places import place_of
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

UNDER_WAY_MAX: Final = 20_000  # bytes to one hearer: beyond that it is silent
SPOKEN_MAX: Final = 4096  # frames kept in mind, to know a lie when it is heard
DISTURBS_EVERY_TIMEOUTS: Final = 6  # a member's ballots, which keep others from deciding
UPDATES_AT_ONCE: Final = 3
UPDATES_MAX: Final = 40  # of each origin


class World(Surroundings, Protocol):
    """What a liar sees of it."""

    scenario: Scenario
    inspector: Inspector
    tracing: bool
    daemons: dict[int, Daemon]

    def trace(self, who: str, what: object) -> None: ...


class Liar:
    """From its birth to its end."""

    paused = False

    def __init__(
        self,
        world: World,
        spec: RunSpec,
        me: Origin,
        scheme: Scheme,
        votes: Votes,
        *,
        chance: Random,
        dialler: Random,
    ) -> None:
        """`votes`: those of the node whose life it goes on with."""
        self.me = me
        self.scheme = scheme
        self.alive = True
        self.chance = chance
        self.coordinates = spec.coordinates
        initial = world.inspector.ledger.initial
        self.initial_digest = codec.digest_coordinates(initial, spec.key)
        self.rows: dict[Origin, FrontierRow] = {}
        self.view = votes.view
        self.lies: list[Lie] = []
        self._world = world
        self._clock = world.clock
        self._key = spec.key
        self._spoken: dict[bytes, list[str]] = {}
        self._linked: dict[int, Origin] = {}
        self._sent: dict[tuple[Origin, Origin], int] = {}  # updates of each origin to each hearer
        ledger = world.inspector.ledger
        assert isinstance(ledger, Ledger)
        self._before = {me: len(ledger.entries.get(me, ()))}  # updates that it made before it turned liar
        self._disturbed_at = -1e9
        self._orders: list[Effect] = []
        self._consensus = Consensus(
            me, votes, links=self._linked, quorum=lambda nodes: False, order=self._orders.append
        )
        self._timing = Timing(world.scenario.failure_timeout_s)
        places = range(1, world.scenario.nodes + 1)
        others = [place for place in places if place != place_of(me.node)]
        self.mesh = Mesh(
            world,
            self,
            spec,
            me,
            others=others,
            failure_timeout_s=world.scenario.failure_timeout_s,
            chance=dialler,
        )
        self.mesh.start()
        self._clock.after(self._timing.status_s, self._tick)

    # -- the process

    def when_running(self, action: Callable[..., object], *arguments: object) -> None:
        """EndpointOwner."""
        if self.alive:
            action(*arguments)

    def die(self) -> None:
        """The process ends."""
        if self.alive:
            self.alive = False
            self.mesh.die()

    def _tick(self) -> None:
        if self.alive:
            self._clock.after(self._timing.status_s, self._tick)
            for node in sorted(self._linked):
                self._speak(self._linked[node])

    # -- speaking

    def _speak(self, hearer: Origin) -> None:
        endpoint = self.mesh.link(hearer)
        if endpoint is None or endpoint.out is None or endpoint.out.undelivered > UNDER_WAY_MAX:
            return
        told, later = self._truth(hearer), []
        changed = []
        for kind in self._kinds(hearer):
            before = self._fingerprint(told)
            frames = kind.tell(self, hearer, told)
            if self._fingerprint(told) != before:
                changed.append(kind.name)
            later += [(frame, kind.name) for frame in frames or ()]
        while len(told.rows) > ORIGINS_MAX:  # several lies add some; the invented ones are numbered highest
            del told.rows[max(told.rows)]
        self._say(hearer, told.pack(), *changed)
        ledger = self._world.inspector.ledger
        assert isinstance(ledger, Ledger)
        if hearer in told.rows:  # what it says that it has counts as had, by those who believe it
            acknowledged = min(told.rows[hearer].sequence, self.sequence_at(hearer, hearer))
            ledger.spread[hearer] = max(acknowledged, ledger.spread.get(hearer, 0))
        for frame, name in later:
            self._say(hearer, frame, name)

    def _kinds(self, hearer: Origin) -> list[Kind]:
        return [LIES[lie.what] for lie in self.lies if place_of(hearer.node) in lie.to]

    @staticmethod
    def _fingerprint(told: Told) -> tuple[object, ...]:
        return (
            *(told.view, told.cluster_id, told.ready),
            *(tuple(told.rows.values()), tuple(told.confirmed.values()), tuple(told.evict_requests)),
        )

    def _truth(self, hearer: Origin) -> Told:
        """A STATUS of one that has applied all it ever heard of, and hears all who are linked."""
        rows = {origin: row._replace(trimmed_to=row.sequence) for origin, row in self.rows.items()}
        confirmed = {peer.node: ConfirmedRow(*peer, 0) for peer in self._linked.values()}
        told = Told(rows, self.view.number, self.view.cluster_id, False, confirmed, set())
        if self.scheme.kept_out:
            told.view = told.cluster_id = 0
            del told.confirmed[hearer.node]
        return told

    def _say(self, hearer: Origin, frame: bytes, *lies: str) -> None:
        if lies:
            if len(self._spoken) >= SPOKEN_MAX:
                self._spoken.clear()
            self._spoken[frame] = list(lies)
            if self._world.tracing:
                self._world.trace(f"liar {self.me.node}", f"tells: {', '.join(lies)}")
        if self._world.tracing:
            self._world.trace(f"liar {self.me.node}", Send(hearer, frame))
        self.mesh.send(hearer, frame)

    def lies_in(self, frame_type: FrameType, body: bytes | bytearray) -> list[str]:
        """What was untrue in a frame that has come from here."""
        return self._spoken.get(pack_frame(frame_type, bytes(body)), [])

    # -- Speaker: what lies may look at

    def is_outside(self, hearer: Origin) -> bool:
        """It is no member of any view that the hearer knows, or may know when this arrives."""
        return self.scheme.kept_out or self.me.node in self.view_of(hearer).forbidden

    def members_linked_to(self, hearer: Origin) -> list[Origin]:
        """Of the hearer's view."""
        daemon = self._daemon(hearer)
        return [] if daemon is None else [each for each in daemon.view.members if daemon.mesh.link(each)]

    def view_of(self, hearer: Origin) -> View:
        """That the hearer knows."""
        daemon = self._daemon(hearer)
        return View() if daemon is None else daemon.view

    def sequence_at(self, hearer: Origin, origin: Origin) -> int:
        """What the hearer has applied."""
        daemon = self._daemon(hearer)
        return 0 if daemon is None else daemon.replica.frontier.sequence(origin)

    def digest_at(self, hearer: Origin, origin: Origin) -> int:
        """And the digest there."""
        daemon = self._daemon(hearer)
        return 0 if daemon is None else daemon.replica.frontier.digest(origin)

    def attempt_of(self, hearer: Origin) -> Attempt | None:
        """Whether it is having a view decided."""
        daemon = self._daemon(hearer)
        return None if daemon is None else daemon.replica.membership._consensus.attempt

    def may_disturb(self) -> bool:
        """Not all the time."""
        now = self._clock.now
        due = now - self._disturbed_at > DISTURBS_EVERY_TIMEOUTS * self._timing.failure_timeout_s
        if due:
            self._disturbed_at = now
        return due

    def _daemon(self, hearer: Origin) -> Daemon | None:
        daemon = self._world.daemons.get(place_of(hearer.node))
        return daemon if daemon is not None and daemon.me == hearer else None

    def make_update(self, origin: Origin, sequence: int, digest: int) -> tuple[bytes, int]:
        """An UPDATE frame that goes on from `digest`, and the digest after it."""
        made = self._make(sequence)
        after = (digest + codec.digest_words(made.words, made.magnitude, self._key)) % 2**64
        header = UpdateHeader(*origin, sequence, after, made.steps, made.magnitude, len(made.words))
        return pack_frame(FrameType.UPDATE, pack_update(header, made.payload)), after

    def _make(self, steps: int) -> OwnUpdateMade:
        words = np.array([self.chance.randrange(2 * self.coordinates)], np.uint32)
        return OwnUpdateMade(steps, self.chance.randint(1, 400), codec.encode(words, self.coordinates), words)

    def next_updates(self, hearer: Origin, origin: Origin) -> list[bytes]:
        """Of an origin that is no honest node's, the next ones for this hearer; all are given the same."""
        ledger = self._world.inspector.ledger
        assert isinstance(ledger, Ledger)
        made = len(ledger.entries.get(origin, ()))
        sent = self._sent.get((origin, hearer), self.sequence_at(hearer, origin))
        if sent == made and made < UPDATES_MAX + self._before.get(origin, 0):
            self._world.inspector.record_made_up(origin, self._make(made + 1), self._key)
            made += 1
        last = min(made, sent + UPDATES_AT_ONCE)
        self._sent[origin, hearer] = last
        return [ledger.entries[origin][number].frame for number in range(sent, last)]

    # -- MeshHost

    def bytes_received(self, endpoint: Endpoint) -> None:
        """Take out all whole frames."""
        try:
            while not endpoint.closing and (frame := endpoint.reader.next_frame()) is not None:
                self.mesh.frame_received(endpoint, frame[0], bytes(frame[1]))
        except PeerError as error:
            self.mesh.failed(endpoint, error)

    def connection_lost(self, endpoint: Endpoint, words: str) -> None:
        """EndpointOwner."""
        self.mesh.forget(endpoint, words)

    def connection_drained(self, endpoint: Endpoint) -> None:
        """EndpointOwner."""

    def link_opened(self, peer: Origin, name: str) -> None:
        """MeshHost."""
        self._linked[peer.node] = peer
        self._speak(peer)

    def link_closed(self, peer: Origin, words: str) -> None:
        """MeshHost."""
        if self._linked.get(peer.node) == peer:
            del self._linked[peer.node]
        for key in [key for key in self._sent if key[1] == peer]:
            del self._sent[key]

    def refused(self, number: int, error: PeerError) -> None:
        """MeshHost."""

    def frame_received(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> None:
        """Keep in mind what is said; vote, if it does."""
        if frame_type in (FrameType.UPDATE, FrameType.RING_CHUNK):
            return
        message = self._world.inspector.parsed(peer, frame_type, body)
        match message:
            case PeerStatus():
                for origin, row in message.rows.items():
                    if origin not in self.rows or row.sequence > self.rows[origin].sequence:
                        self.rows[origin] = FrontierRow(*origin, row.sequence, row.digest)
                if message.view < self.view.number:
                    self._say(peer, pack_message(self.view.news()))
            case SnapshotRequest():
                self._give(peer)
            case ViewNews():
                self._learn(parse_view(message))
            case Prepare() | Accept() if self.scheme.votes:
                self._vote(peer, message)

    def _give(self, peer: Origin) -> None:
        for kind in self._kinds(peer):
            if kind.answer is not None:
                for frame in kind.answer(self, peer):
                    self._say(peer, frame, kind.name)
                return
        self._say(peer, pack_message(SnapshotEnd(reason="busy", tail=0)))

    def _learn(self, view: View) -> None:
        if view.number > self.view.number:
            self.view = view
            self._consensus.learn(view)
            self._save()

    def _vote(self, peer: Origin, message: object) -> None:
        try:
            self._consensus.on_message(peer, message)  # type: ignore[arg-type]
        except PeerError:
            return
        self._save()

    def _save(self) -> None:
        """As if it had a disk that takes no time."""
        while self._orders:
            effect = self._orders.pop(0)
            if isinstance(effect, SaveVotes):
                self._world.see("a liar voted as it should")
                self._world.inspector.agreement.saved(self.me.node, effect.votes)
                self._consensus.saved(effect.revision)
            elif isinstance(effect, Send):
                self._say(effect.peer, effect.frame)
