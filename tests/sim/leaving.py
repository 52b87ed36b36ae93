"""A clean stop: the daemon's own steps (node/stopping.py) on the virtual clock, then the end of its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.node.stopping import DRAIN_TIMEOUT_S, leave_run
from tests.sim.clock import Clock
from tests.sim.keeper import Keeper

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

CLOSING_S: Final = 0.1  # from the end of what it sends to that of the process


class World(Protocol):
    """What is seen of it."""

    clock: Clock

    def see(self, what: str, times: int = 1) -> None: ...


def leave(world: World, daemon: Daemon, keeper: Keeper) -> None:
    """Begin; the daemon dies when it is done."""
    clock = world.clock
    daemon.run.backpressure.draining = True
    steps = leave_run(
        daemon.run,
        "stopped",
        now=lambda: clock.now,
        timeout_s=DRAIN_TIMEOUT_S,
        expected=lambda: daemon.mesh.expects(daemon.run.stopped_nodes),
    )

    def go_on() -> None:
        delay_s = next(steps, None)
        if delay_s is not None:
            clock.after(delay_s, daemon.when_running, go_on)
        elif daemon.alive:
            if daemon.me not in daemon.replica.membership.view:
                world.see("left the view")
            keeper.close()
            daemon.mesh.finish()
            clock.after(CLOSING_S, daemon.die)

    go_on()
