"""What must have happened to rings in a range of seeds for its silence to mean anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.effects import LogEvent, RejectContribution
from p2psgd.core.events import Event, FrameReceived, LinkClosed, LinkOpened, RingChunk, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import RingBucket
from tests.sim.ring.standing import GenerationId, Standing

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

MUST_OCCUR: Final = (
    "ring: round",
    "ring: round redone in a smaller ring",
    "ring: round redone in the same view",
    "ring: round completed by a result given later",
    "ring: round completed by repair",
    "ring: round with a follower",
    "ring: late trainer evicted",
    "ring: silent member evicted",
    "ring: minority stands still",
    "ring: generation stopped by a lost link",
    "ring: generation after a neighbour's link was lost",
    "ring: head died between RING_BEGIN and the first share",
    "ring: joiner between rounds",
    "ring: mismatch refused",
    "ring: snapshot in a dense ring",
    "ring: snapshot in a sparse ring",
    "ring: array summed",
    "all lost at once",
    "eviction",
    "readmission",
    "restart from checkpoint",
    "removal for good",
)
LATE_WORDS: Final = "has not given its share"
SILENT_WORDS: Final = "it is silent"


class World(Protocol):
    """Where sightings are counted."""

    def see(self, what: str, times: int = 1) -> None: ...
    def living(self) -> list[Daemon]: ...


class RingSightings:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tried: dict[int, list[tuple[GenerationId, tuple[Origin, ...]]]] = {}  # by round under way
        self._completed: dict[int, GenerationId] = {}
        self._last_order: tuple[Origin, ...] = ()
        self._cut_off: set[int] = set()  # views in which a generation ended with a link

    def begun(self, daemon: Daemon, standing: Standing) -> None:
        """The first node of a generation begins."""
        generation, of = standing.generation, standing.id
        assert generation is not None
        assert of is not None
        if self._last_order and standing.done and not set(generation.order) <= set(self._last_order):
            self._world.see("ring: joiner between rounds")
        if of.view in self._cut_off:
            self._world.see("ring: generation after a neighbour's link was lost")
            self._cut_off.discard(of.view)
        self._last_order = generation.order
        self._tried.setdefault(standing.done + 1, []).append((of, generation.order))

    def completed(self, daemon: Daemon, of: GenerationId, order: tuple[Origin, ...], done: int) -> None:
        """The first node of a generation completes a round."""
        self._world.see("ring: round")
        if any(each.me in order and not each.ring_trainer.attached for each in self._world.living()):
            self._world.see("ring: round with a follower")
        for earlier, members in self._tried.pop(done, []):
            if earlier == of:
                continue
            smaller = len(order) < len(members)
            if smaller:
                self._world.see("ring: round redone in a smaller ring")
            if earlier.view == of.view:
                self._world.see("ring: round redone in the same view")
        self._tried.setdefault(done + 1, []).append((of, order))

    def stopped(self, daemon: Daemon, event: Event, before: Standing) -> None:
        """A node's generation ended."""
        assert before.id is not None
        if isinstance(event, LinkClosed | LinkOpened):
            self._world.see("ring: generation stopped by a lost link")
            self._cut_off.add(before.id.view)

    def completed_apart(self, daemon: Daemon, event: Event) -> None:
        """A node's round is complete though it runs none."""
        message = event.message if isinstance(event, FrameReceived) else None
        if isinstance(message, UpdateBody):
            self._world.see("ring: round completed by repair")
        elif isinstance(message, RingBucket | RingChunk):
            self._world.see("ring: round completed by a result given later")

    def refused(self, effect: RejectContribution) -> None:
        """A trainer's share does not fit."""
        self._world.see("ring: mismatch refused")

    def noted(self, note: LogEvent) -> None:
        """A node says something of itself."""
        if note.kind == "evicted" and LATE_WORDS in note.words:
            self._world.see("ring: late trainer evicted")
        if note.kind == "evicted" and SILENT_WORDS in note.words:
            self._world.see("ring: silent member evicted")

    def replaced(self, *, dense: bool) -> None:
        """A node's weights were replaced as a whole."""
        self._world.see(f"ring: snapshot in a {'dense' if dense else 'sparse'} ring")
