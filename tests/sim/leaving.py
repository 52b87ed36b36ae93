"""A clean stop, as node/daemon.py makes it: drain, say goodbye, save, and wait to be out of the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.events import NodeStopping
from tests.sim.clock import Clock
from tests.sim.keeper import Keeper
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

DRAIN_TIMEOUT_S: Final = 30.0
DRAIN_POLL_S: Final = 0.1


class World(Protocol):
    """What is seen of it."""

    scenario: Scenario
    clock: Clock

    def see(self, what: str, times: int = 1) -> None: ...


def leave(world: World, daemon: Daemon, keeper: Keeper) -> None:
    """Begin; the daemon dies when it is done."""
    clock, replica = world.clock, daemon.replica

    def drain(deadline: float) -> None:
        undelivered = any(map(replica.lag, replica.peers.values()))
        if (undelivered or replica.tally.acknowledged < replica.sequence) and clock.now < deadline:
            clock.after(DRAIN_POLL_S, daemon.when_running, drain, deadline)
            return
        world.see("goodbye" if replica.peers else "stopped alone")
        daemon.handle(NodeStopping())
        if daemon.alive:
            keeper.begin()
        wait(clock.now + world.scenario.patience_s, clock.now + DRAIN_TIMEOUT_S)

    def wait(deadline: float, saving_until: float) -> None:
        """For a view without this node, one patience at most, and for the last checkpoint."""
        left = replica.may_leave or clock.now > deadline
        saved = not keeper.writing or clock.now > saving_until
        if daemon.alive and not (left and saved):
            clock.after(DRAIN_POLL_S, daemon.when_running, wait, deadline, saving_until)
        elif daemon.alive:
            if daemon.me not in replica.membership.view:
                world.see("left the view")
            keeper.close()
            daemon.mesh.finish()
            clock.after(DRAIN_POLL_S, daemon.die)

    drain(clock.now + DRAIN_TIMEOUT_S)
