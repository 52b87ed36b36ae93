"""The log beside a plain model of it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import ENTRY_BYTES, OriginLog, Tail, UpdateLog
from tests.core.logs import ENTRY, A, B, C, check_accounts, frame_of
from tests.core.stores import MemoryStore


class LogMachine(RuleBasedStateMachine):
    """The log beside a plain model of it: every frame of every origin, a floor and an order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.log = UpdateLog(budget_bytes=6 * ENTRY, store=self.store, store_budget_bytes=400)
        self.frames: dict[Origin, list[bytes]] = {A: [], B: [], C: []}
        self.floors = {A: 0, B: 0, C: 0}
        self.order: list[tuple[Origin, int]] = []
        self.tail: tuple[Tail, list[bytes]] | None = None  # in use, and what it must give

    @rule(origin=st.sampled_from([A, B, C]), length=st.integers(10, 200), count=st.integers(1, 5))
    def append(self, origin: Origin, length: int, count: int) -> None:
        for _ in range(count):
            frames = self.frames[origin]
            frames.append(frame_of(origin, len(frames) + 1, length))
            roomy = self.log.room(length)
            self.log.append(origin, len(frames), frames[-1])
            self.order.append((origin, len(frames)))
            if roomy:  # one frame over shows that the store takes no more, and then there is no room
                assert self.log.bytes_held <= self.log.budget_bytes + length + ENTRY_BYTES

    @rule(stable=st.tuples(*[st.integers(0, 40)] * 3), durable=st.tuples(*[st.integers(0, 40)] * 3))
    def trim(self, stable: tuple[int, ...], durable: tuple[int, ...]) -> None:
        stables, durables = (dict(zip((A, B, C), row, strict=True)) for row in (stable, durable))
        lost, target = 0, 0.5 * self.log.capacity
        used = self.log.bytes_held + self.log.bytes_stored
        for limits in ({o: min(stables[o], durables[o]) for o in stables}, stables):
            for origin, sequence in list(self.order):
                if used > target and self.floors[origin] < sequence <= limits[origin]:
                    self.floors[origin] = sequence
                    self.order.remove((origin, sequence))
                    used -= len(self.frames[origin][sequence - 1]) + ENTRY_BYTES
                    lost += limits is stables
        before = self.log.lost_durability
        self.log.trim(stables.__getitem__, durables.__getitem__, share=0.5)
        assert self.log.lost_durability - before == lost

    @rule()
    def toggle_the_disk(self) -> None:
        self.store.writable = not self.store.writable

    @precondition(lambda self: self.tail is None)
    @rule(acknowledged=st.tuples(*[st.integers(0, 40)] * 3))
    def begin_to_read_a_tail(self, acknowledged: tuple[int, ...]) -> None:
        numbers = dict(zip((A, B, C), acknowledged, strict=True))
        wanted = [
            frame
            for origin, frames in self.frames.items()
            for frame in frames[max(self.floors[origin], numbers[origin]) :]
        ]
        self.tail = self.log.tail(numbers.__getitem__), sorted(wanted)

    @precondition(lambda self: self.tail is not None)
    @rule()
    def read_the_tail(self) -> None:
        assert self.tail is not None
        tail, wanted = self.tail
        assert sorted(tail) == wanted
        self.log.release()
        self.tail = None

    @precondition(lambda self: self.order)
    @rule()
    def adopt_own_tail(self) -> None:
        """What the log itself would give to a joiner changes nothing here."""
        tail = [
            (origin, sequence, frame)
            for origin in (A, B, C)
            for sequence in range(self.log.last(origin), self.log.trimmed_to(origin), -1)
            if (frame := self.log.frame(origin, sequence)) is not None
        ]
        lanes = {origin: OriginLog(self.log.last(origin)) for origin in (A, B, C)}
        for origin, _, frame in tail:
            self.log.receive(lanes[origin], frame)
        self.log.adopt(lanes, {})
        while self.log.untidy:
            self.log.tidy()
        self.order.sort()  # all are as old as can be

    @invariant()
    def equals_its_model(self) -> None:
        assert len(self.log) == len(self.order)
        for origin, frames in self.frames.items():
            assert self.log.trimmed_to(origin) == self.floors[origin]
            assert self.log.last(origin) == len(frames)
            for sequence in range(self.floors[origin] + 1, len(frames) + 1):
                assert self.log.frame(origin, sequence) == frames[sequence - 1]
        check_accounts(self.log, self.store)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
