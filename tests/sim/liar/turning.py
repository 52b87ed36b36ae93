"""How a liar comes into a run: a member turns liar, or a stranger comes; and how people are told of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from p2psgd.core.effects import LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.view import NO_VOTES, Votes
from tests.sim.disk import Disk
from tests.sim.faults import Liar as Scheme
from tests.sim.invariants import Inspector
from tests.sim.liar.naming import Naming
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon
    from tests.sim.liar.liar import Liar


class World(Protocol):
    """What is changed of it."""

    scenario: Scenario
    inspector: Inspector
    daemons: dict[int, Daemon]
    disks: dict[int, Disk]
    burnt: set[int]
    lying: set[Origin]

    def survives_without(self, *, burnt: int | None = None, removed: int | None = None) -> bool: ...
    def see(self, what: str, times: int = 1) -> None: ...


def may_begin(world: World, scheme: Scheme) -> bool:
    """The run is founded; and who turns liar is a member whose vote the others can do without."""
    latest = world.inspector.agreement.latest
    if not latest.number or scheme.node > world.scenario.nodes:
        return latest.number > 0
    daemon = world.daemons.get(scheme.node)
    if daemon is None or daemon.paused or daemon.stopping or daemon.me not in latest:
        return False
    return world.survives_without(burnt=scheme.node)


def turn(world: World, scheme: Scheme) -> tuple[Origin, Votes]:
    """The life that lies from now on, and the votes that it knows of."""
    if scheme.node > world.scenario.nodes:
        world.see("a stranger lies")
        me, votes = Origin(scheme.node, 1), NO_VOTES
    else:
        world.see("a member turned liar")
        daemon = world.daemons[scheme.node]
        me, votes = daemon.me, world.disks[scheme.node].votes
        daemon.die()
        del world.disks[scheme.node]
    world.burnt.add(me.node)
    world.lying.add(me)
    return me, votes


def note_of_liars(naming: Naming, liars: Iterable[Liar], note: LogEvent) -> None:
    """An honest node has something to tell."""
    for liar in liars:
        if note.node == liar.me.node:
            if note.kind == "admitted":
                naming.admitted(liar.scheme)
            elif note.kind == "evicted":
                naming.said("an event")
