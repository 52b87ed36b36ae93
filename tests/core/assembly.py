"""Several memberships that talk over a bag of messages: what is under way may arrive in any order, twice, or
never. A crash keeps of a node only the votes that were saved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psgd.core.effects import LogEvent, SaveVotes, Send
from p2psgd.core.events import Vote
from p2psgd.core.frontier import Origin
from p2psgd.core.membership import Membership
from p2psgd.core.timing import Timing
from p2psgd.core.view import NO_VIEW, View, Votes
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import Accept, Accepted, Prepare, Promise, ViewNews, parse_message

TIMING = Timing(1.0)
FAILURE_TIMEOUT_S = TIMING.failure_timeout_s
TICK_S = 0.1


@dataclass(frozen=True)
class Said:
    """What a STATUS tells a membership."""

    view: int
    ready: bool
    evict_requests: set[int]


@dataclass
class Node:
    """A machine; `life` is None while it is down."""

    origin: Origin
    disk: Votes = field(default_factory=Votes)
    life: Membership | None = None
    unsaved: list[SaveVotes] = field(default_factory=list)
    notes: list[LogEvent] = field(default_factory=list)
    ready: bool = True
    stopping: bool = False


@dataclass
class Assembly:
    """Nodes 1 to `size`, all down at first."""

    size: int
    two_nodes: str = "stall"
    bootstrap_expect: int = 0  # 0: all
    now: float = 100.0

    def __post_init__(self) -> None:
        self.nodes = {node: Node(Origin(node, 0)) for node in range(1, self.size + 1)}
        self.cables: set[frozenset[int]] = set()
        self.bag: list[tuple[Origin, Origin, Vote | Said]] = []
        self.decided: dict[int, View] = {}
        self.claims: dict[int, int] = {}  # nodes that tell another view than the one they know

    def life(self, node: int) -> Membership:
        life = self.nodes[node].life
        assert life is not None
        return life

    def up(self) -> list[int]:
        return [node for node, machine in self.nodes.items() if machine.life is not None]

    def start(self, node: int) -> None:
        """Begin a new life with the votes that were saved."""
        machine = self.nodes[node]
        machine.origin = Origin(node, machine.origin.incarnation + 1)
        bootstrap_expect = self.bootstrap_expect or self.size
        machine.life = Membership(
            machine.origin,
            bootstrap_expect=bootstrap_expect,
            two_nodes=self.two_nodes,
            timing=TIMING,
            votes=machine.disk,
            now=self.now,
        )
        machine.ready, machine.stopping = True, False
        for other in self.up():
            if frozenset({node, other}) in self.cables:
                self._link(node, other)

    def crash(self, node: int) -> None:
        machine = self.nodes[node]
        machine.life = None
        machine.unsaved = []
        for other in self.up():
            self.life(other).unlink(machine.origin)

    def connect(self, one: int, other: int) -> None:
        cable = frozenset({one, other})
        if one == other or cable in self.cables:
            return
        self.cables.add(cable)
        if self.nodes[one].life and self.nodes[other].life:
            self._link(one, other)

    def connect_all(self) -> None:
        for one in self.nodes:
            for other in range(1, one):
                self.connect(one, other)

    def cut(self, one: int, other: int) -> None:
        cable = frozenset({one, other})
        if cable in self.cables:
            self.cables.remove(cable)
            for node, peer in ((one, other), (other, one)):
                life = self.nodes[node].life
                if life is not None:
                    life.unlink(self.nodes[peer].origin)
                    self.collect(node)

    def _link(self, one: int, other: int) -> None:
        for node, peer in ((one, other), (other, one)):
            self.life(node).link(self.nodes[peer].origin, self.now)
            self.collect(node)
            self.tell_status(node, peer)

    def linked(self, one: int, other: int) -> bool:
        up = self.up()
        return one in up and other in up and frozenset({one, other}) in self.cables

    def tick(self, *, status_sender: bool = True) -> None:
        self.now += TICK_S
        for node in self.up():
            machine = self.nodes[node]
            if machine.stopping:
                self.life(node).stop()
            self.life(node).tick(self.now, ready=machine.ready)
            self.collect(node)
            if status_sender:
                for peer in self.up():
                    if self.linked(node, peer):
                        self.tell_status(node, peer)

    def tell_status(self, node: int, peer: int) -> None:
        view = self.claims.get(node, self.life(node).view.number)
        said = Said(view, self.nodes[node].ready, set(self.life(node).evict_requests))
        self.bag.append((self.nodes[node].origin, self.nodes[peer].origin, said))

    def save(self, node: int, count: int | None = None) -> None:
        """The oldest `count` orders to save have reached the disk; None: all."""
        machine = self.nodes[node]
        done, machine.unsaved = machine.unsaved[:count], machine.unsaved[len(machine.unsaved[:count]) :]
        if done:
            machine.disk = done[-1].votes
            self.life(node).saved(done[-1].revision, self.now)
            self.collect(node)

    def deliver(self, index: int, *, again: bool = False) -> None:
        """Hand over a message of the bag if both lives are still linked; `again`: it stays in the bag."""
        source, target, message = self.bag[index]
        if not again:
            del self.bag[index]
        if not self.linked(source.node, target.node):
            return
        if self.nodes[source.node].origin != source or self.nodes[target.node].origin != target:
            return
        life = self.life(target.node)
        if isinstance(message, Said):
            life.on_status(
                source,
                view=message.view,
                ready=message.ready,
                evict_requests=message.evict_requests,
                now=self.now,
            )
        else:
            life.on_vote(source, message, self.now)
        self.collect(target.node)

    def settle(self, seconds: float = 0.0) -> None:
        """Deliver and save everything, in order, then let time pass."""
        until = self.now + seconds
        while True:
            while self.bag or any(self.nodes[node].unsaved for node in self.up()):
                for node in self.up():
                    self.save(node)
                if self.bag:
                    self.deliver(0)
            if self.now >= until:
                return
            self.tick()

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node)
        self.connect_all()

    def views(self) -> list[View]:
        return [self.life(node).view for node in self.up()]

    def kinds(self, node: int) -> list[tuple[str, int | None]]:
        return [(note.kind, note.node) for note in self.nodes[node].notes]

    def collect(self, node: int) -> None:
        """Carry out what a node's membership orders; it must not contradict itself or the others."""
        machine, life = self.nodes[node], self.life(node)
        known = machine.unsaved[-1].votes if machine.unsaved else machine.disk
        effects = life.effects.copy()
        life.effects.clear()
        for effect in effects:
            match effect:
                case Send():
                    frame_type = FrameType(effect.frame[PREFIX.size - 1])
                    message = parse_message(frame_type, effect.frame[PREFIX.size :])
                    assert isinstance(message, Prepare | Promise | Accept | Accepted | ViewNews)
                    self.bag.append((machine.origin, effect.peer, message))
                case SaveVotes():
                    assert effect.votes.view.number >= known.view.number, "a view number went back"
                    known = effect.votes
                    machine.unsaved.append(effect)
                case LogEvent():
                    machine.notes.append(effect)
                case _:
                    raise AssertionError(effect)
        view = life.view
        assert view == known.view, "a view is known and not ordered to be saved"
        if view != NO_VIEW:
            assert self.decided.setdefault(view.number, view) == view, "two views of one number"


def founded(size: int, *, two_nodes: str = "stall") -> Assembly:
    assembly = Assembly(size, two_nodes=two_nodes)
    assembly.start_all()
    assembly.settle(0.2)
    assert_all_know(assembly, 1, set(assembly.nodes))
    return assembly


def assert_all_know(
    assembly: Assembly, number: int, nodes: set[int], *, among: set[int] | None = None
) -> None:
    for node in among or assembly.up():
        view = assembly.life(node).view
        assert (view.number, set(view.incarnations)) == (number, nodes), assembly.life(node).explain()


def shake(assembly: Assembly, chance: random.Random, steps: int) -> None:
    """Steps in which anything may happen but the loss of a disk."""
    nodes = list(assembly.nodes)
    calm = chance.choice([1, 3, 10])  # messages that arrive at a time
    for _ in range(steps):
        one, other = chance.choice(nodes), chance.choice(nodes)
        machine = assembly.nodes[one]
        what = chance.random()
        if what < 0.70 and assembly.bag:
            for _ in range(min(calm, len(assembly.bag))):
                _shake_bag(assembly, chance)
        elif what < 0.80 and machine.unsaved:
            assembly.save(one, chance.choice([None, 1]))
        elif what < 0.90:
            assembly.tick(status_sender=False)
            for peer in nodes:
                if assembly.linked(one, peer):
                    assembly.tell_status(one, peer)
        elif what < 0.93:
            assembly.cut(one, other)
        elif what < 0.97:
            assembly.connect(one, other)
        elif machine.life is None:
            assembly.start(one)
        elif what < 0.98:
            assembly.crash(one)
        else:
            _shake_wishes(assembly, chance, one, other)
        del assembly.bag[:-400]  # what is that late is lost


def _shake_bag(assembly: Assembly, chance: random.Random) -> None:
    index = chance.randrange(len(assembly.bag))
    if chance.random() < 0.1:
        del assembly.bag[index]
    else:
        assembly.deliver(index, again=chance.random() < 0.1)


def _shake_wishes(assembly: Assembly, chance: random.Random, one: int, other: int) -> None:
    life = assembly.life(one)
    if one == other:
        return
    match chance.randrange(5):
        case 0:
            life.request_eviction(other, "it was their turn", assembly.now)
            assembly.collect(one)
        case 1:
            life.withdraw_eviction(other)
        case 2:
            life.leaving(other)
        case 3:
            life.remove(other, forbid=False)
        case _:
            assembly.nodes[one].ready = not assembly.nodes[one].ready
