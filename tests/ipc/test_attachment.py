"""The daemon's end of the memory against a trainer that writes whatever it likes."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.ring_buffer import (
    COUNTERS_WORDS,
    SEND_STEPS_MAX,
    Counter,
    Counters,
    RingReader,
    RingWriter,
    entry_bytes,
    pack_steps,
)
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.trainer_memory import STEPS_LEAP_MAX, Attachment
from p2psgd.ipc.trainer_session import TAKE_ENTRIES, TAKE_INDICES
from p2psgd.wire import codec
from p2psgd.wire.mode import ASYNC, OWNERS_ROUNDS, Mode
from p2psgd.wire.update import OwnUpdateMade
from tests.ipc.daemons import PATIENT, make_words, smallest_rings

WEIGHTS = 3000
RINGS = smallest_rings(WEIGHTS)
GENERATION = 5


class Trainer:
    """An attachment and a trainer's view of it, with no manners at all."""

    def __init__(self, steps: int = 10, mode: Mode = ASYNC) -> None:
        self.daemon = Attachment(
            coordinates=WEIGHTS,
            mode=mode,
            generation=GENERATION,
            steps=steps,
            half=0,
            stopping=False,
            **RINGS,
        )
        inbox, outbox, counters, self.wake_trainer, self.wake_daemon = self.daemon.descriptors
        self.inbox = map_segment(inbox, np.uint8, RINGS["inbox_bytes"], Access.WRITE)
        self.outbox = map_segment(outbox, np.uint8, RINGS["outbox_bytes"], Access.WRITE)
        self.counters = Counters(map_segment(counters, np.uint64, COUNTERS_WORDS, Access.WRITE))
        self.writer = RingWriter(self.outbox, GENERATION)

    def was_woken(self) -> bool:
        """Return whether the daemon has woken the trainer since the last call."""
        signalled = bool(select.select([self.wake_trainer], [], [], 0)[0])
        if signalled:
            os.eventfd_read(self.wake_trainer)
        return signalled

    def write(self, entry: bytes) -> None:
        """Write and publish an entry."""
        self.writer.put(entry)
        self.counters.store(Counter.OUTBOX_HEAD, self.writer.head)

    def publish(self, steps: int, of_send: int = 1) -> None:
        """Say that this mini-batch is published, the last one of a send."""
        half = 1 - self.daemon.half
        self.counters.store(Counter.STEPS, pack_steps(steps, of_send, half))
        self.counters.store(Counter.OUTBOX_HEAD, self.writer.head | half)

    def write_update(self, steps: int, indices: list[int], step: int = 1, count: int | None = None) -> None:
        words = make_words(np.array(indices), np.zeros(len(indices)))
        payload = codec.encode(words, WEIGHTS)
        self.write(
            layout.OUTBOX_ENTRY.pack(steps, step, len(indices) if count is None else count, 0.0) + payload
        )

    def take(self, entries: int = TAKE_ENTRIES, indices: int = TAKE_INDICES) -> list[list[int]]:
        return [list(update.words >> 1) for update in self.take_updates(entries, indices)]

    def take_updates(self, entries: int = TAKE_ENTRIES, indices: int = TAKE_INDICES) -> list[OwnUpdateMade]:
        given = self.daemon.take(entries, indices)
        updates = [update for update in given if isinstance(update, OwnUpdateMade)]
        assert len(updates) == len(given)
        return updates


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    trainer = Trainer()
    yield trainer
    trainer.daemon.close()


def test_updates_are_taken_in_order_and_their_room_is_given_back(trainer: Trainer) -> None:
    assert trainer.take() == []
    trainer.write_update(11, [1, 2])
    trainer.write_update(13, [5])
    assert trainer.take() == [[1, 2], [5]]
    assert trainer.counters.load(Counter.OUTBOX_TAIL) == trainer.writer.head
    assert select.select([trainer.wake_trainer], [], [], 0)[0]
    assert trainer.take() == []


def test_only_a_trainer_that_has_read_all_is_woken_by_an_update(trainer: Trainer) -> None:
    trainer.daemon.deliver(b"first")
    assert trainer.was_woken()
    first = trainer.daemon.inbox.head
    trainer.daemon.deliver(b"second")
    assert not trainer.was_woken()
    trainer.counters.store(Counter.INBOX_TAIL, first)
    trainer.daemon.deliver(b"third")
    assert not trainer.was_woken()
    trainer.counters.store(Counter.INBOX_TAIL, trainer.daemon.inbox.head)
    trainer.daemon.deliver(b"fourth")
    assert trainer.was_woken()


def test_a_trainer_in_rounds_is_woken_when_the_next_one_is_opened() -> None:
    trainer = Trainer(mode=OWNERS_ROUNDS)
    try:
        trainer.daemon.deliver(b"an update of the round")
        assert not trainer.was_woken()
        trainer.daemon.open_round(2, contributors=1, sums=0, adding_us=0, sending_us=0)
        assert trainer.was_woken()
    finally:
        trainer.daemon.close()


def test_a_turn_is_bounded_in_entries_and_in_indices(trainer: Trainer) -> None:
    for number in range(5):
        trainer.write_update(11 + number, [number, 100, 200])
    assert len(trainer.take(entries=2)) == 2
    assert len(trainer.take(indices=4)) == 2
    assert len(trainer.take()) == 1


@pytest.mark.parametrize("steps", [0, 9, 10 + STEPS_LEAP_MAX + 1, 2**64 - 1])
def test_a_mini_batch_that_cannot_follow_is_refused(trainer: Trainer, steps: int) -> None:
    trainer.write_update(steps, [1])
    with pytest.raises(TrainerError, match=f"step {steps} cannot follow step 10"):
        trainer.take()


@pytest.mark.parametrize("step", [0, codec.MAGNITUDE_MAX + 1, 2**32 - 1])
def test_a_step_out_of_range_is_refused(trainer: Trainer, step: int) -> None:
    trainer.write_update(11, [1], step)
    with pytest.raises(TrainerError, match=f"magnitude {step} is not within"):
        trainer.take()


@pytest.mark.parametrize("count", [0, WEIGHTS + 1, 2**32 - 1])
def test_a_count_out_of_range_is_refused(trainer: Trainer, count: int) -> None:
    trainer.write_update(11, [1], count=count)
    with pytest.raises(TrainerError, match=f"{count} indices, possible are 1 to {WEIGHTS}"):
        trainer.take()


def test_a_payload_that_does_not_decode_is_refused(trainer: Trainer) -> None:
    trainer.write_update(11, [1, 2], count=3)
    with pytest.raises(TrainerError, match="its payload does not decode"):
        trainer.take()


def test_updates_before_a_bad_entry_are_taken_whole(trainer: Trainer) -> None:
    trainer.write_update(11, [1])
    trainer.write_update(12, [2])
    trainer.write_update(11, [3])
    trainer.write_update(13, [4])
    assert trainer.take() == [[1], [2]]
    for _ in range(2):
        with pytest.raises(TrainerError, match="step 11 cannot follow step 12"):
            trainer.take()
    assert trainer.daemon.entries.steps == 12


def test_a_mini_batch_may_send_several_updates(trainer: Trainer) -> None:
    trainer.write_update(11, [1], step=3)
    trainer.write_update(11, [2], step=4)
    assert trainer.take() == [[1], [2]]
    trainer.write_update(11, [3], step=5)
    assert trainer.take() == [[3]]
    assert trainer.daemon.entries.steps == 11


def test_an_inbox_that_is_full_asks_for_a_reload_and_writes_no_more(trainer: Trainer) -> None:
    body = bytes(layout.inbox_entry_bytes_max(WEIGHTS) // 3)
    held = 0
    while not trainer.counters.load(Counter.RELOAD_WANTED):
        held = trainer.counters.load(Counter.INBOX_HEAD)
        trainer.daemon.deliver(body)
    assert held == RINGS["inbox_bytes"] // entry_bytes(len(body)) * entry_bytes(len(body))
    before = trainer.inbox.tobytes()
    trainer.counters.store(Counter.INBOX_TAIL, held)
    trainer.daemon.deliver(body)
    assert (trainer.counters.load(Counter.INBOX_HEAD), trainer.inbox.tobytes()) == (held, before)
    assert trainer.daemon.reload() == held
    assert not trainer.counters.load(Counter.RELOAD_WANTED)
    trainer.daemon.deliver(body)
    reader = RingReader(trainer.inbox, GENERATION, length_min=1, length_max=len(body))
    reader.skip_to(held)
    reader.accept_head(trainer.counters.load(Counter.INBOX_HEAD))
    assert reader.take() == body


def test_after_a_reload_the_whole_inbox_is_free_before_the_trainer_says_so(trainer: Trainer) -> None:
    """Else busy peers would fill the little room that is left and force one reload after another."""
    body = bytes(layout.inbox_entry_bytes_max(WEIGHTS) // 3)
    while not trainer.counters.load(Counter.RELOAD_WANTED):
        trainer.daemon.deliver(body)
    trainer.daemon.reload()
    for _ in range(RINGS["inbox_bytes"] // entry_bytes(len(body))):
        trainer.daemon.deliver(body)
    assert not trainer.counters.load(Counter.RELOAD_WANTED)


def test_a_mini_batch_counts_once_the_head_is_stored(trainer: Trainer) -> None:
    assert trainer.daemon.progress() == 10
    trainer.publish(11)
    assert trainer.daemon.progress() == 11
    trainer.counters.store(Counter.STEPS, pack_steps(12, 1, 0))
    assert trainer.daemon.progress() == 11
    trainer.publish(12)
    assert trainer.daemon.progress() == 12


@pytest.mark.parametrize("of_send", [1, 2, SEND_STEPS_MAX])
def test_all_mini_batches_of_a_send_count_at_once(trainer: Trainer, of_send: int) -> None:
    trainer.publish(10 + of_send, of_send)
    assert trainer.daemon.progress() == 10 + of_send
    trainer.counters.store(Counter.STEPS, pack_steps(10 + 2 * of_send, of_send, 1 - trainer.daemon.half))
    assert trainer.daemon.progress() == 10 + of_send


@pytest.mark.parametrize("published_between", [1, 2, 3])
def test_the_count_does_not_go_back_when_the_trainer_publishes_between_its_loads(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, published_between: int
) -> None:
    trainer.publish(11)
    assert trainer.daemon.progress() == 11
    counters = trainer.daemon._counters
    load = counters.load
    last = 11 + published_between

    def load_and_publish(counter: Counter) -> int:
        value = load(counter)
        if counter is Counter.STEPS:
            for steps in range(12, last + 1):
                trainer.publish(steps)
        return value

    with monkeypatch.context() as patch:
        patch.setattr(counters, "load", load_and_publish)
        assert 11 <= trainer.daemon.progress() <= last
    assert trainer.daemon.progress() == last  # exact now that nothing more comes


def test_the_head_tells_positions_and_halves_apart_and_no_other_bit(trainer: Trainer) -> None:
    trainer.write_update(11, [1])
    trainer.publish(11)
    assert trainer.counters.load(Counter.OUTBOX_HEAD) == trainer.writer.head + 1
    assert trainer.take() == [[1]]
    trainer.counters.store(Counter.OUTBOX_HEAD, trainer.writer.head + 3)
    with pytest.raises(TrainerError, match="a ring's head was moved"):
        trainer.take()


@pytest.mark.parametrize("half", [0, 1])
def test_a_count_that_cannot_be_is_not_believed_but_the_half_is(trainer: Trainer, half: int) -> None:
    trainer.write_update(11, [1])
    trainer.take()
    trainer.counters.store(Counter.OUTBOX_HEAD, trainer.writer.head | half)
    for lie in (
        *(0, 10, 2**64 - 1),
        *(pack_steps(steps, of_send, half) for steps in (0, 10, 13 + STEPS_LEAP_MAX) for of_send in (0, 1)),
        pack_steps(12, SEND_STEPS_MAX, 1 - half),
    ):
        trainer.counters.store(Counter.STEPS, lie)
        assert trainer.daemon.progress() == 11
        assert trainer.daemon.half == half


def test_descriptors_are_closed_in_the_end() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        trainer = Trainer()
        trainer.daemon.close()
        trainer.daemon.close()
        del trainer
    assert set(os.listdir("/proc/self/fd")) == before


counter_values = st.one_of(
    st.integers(0, 2**64 - 1), st.integers(0, 400).map(lambda n: 8 * n), st.just(RINGS["outbox_bytes"])
)
rubbish = st.lists(
    st.one_of(
        st.tuples(st.just("counter"), st.sampled_from(list(Counter)), counter_values),
        st.tuples(st.just("outbox"), st.integers(0, 300), st.binary(max_size=60)),
        st.tuples(st.just("inbox"), st.integers(0, 300), st.binary(max_size=60)),
        st.tuples(
            st.just("update"), st.integers(1, 40), st.lists(st.integers(0, 2999), min_size=1, unique=True)
        ),
        st.tuples(st.just("deliver"), st.integers(1, 3000), st.just(b"")),
        st.tuples(st.just("reload"), st.just(0), st.just(b"")),
    ),
    max_size=25,
)


@PATIENT
@given(rubbish)
def test_whatever_lies_in_shared_memory_the_daemon_takes_good_updates_or_refuses(
    actions: list[tuple[str, int, object]],
) -> None:
    trainer = Trainer()
    last = 10
    for action in actions:
        match action:
            case ("counter", counter, int(value)):
                trainer.counters.store(Counter(counter), value)
            case ("outbox" | "inbox" as ring, offset, bytes(data)):
                memory = trainer.outbox if ring == "outbox" else trainer.inbox
                memory[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
            case ("update", leap, list(indices)) if trainer.writer.room >= entry_bytes(4000):
                trainer.write_update(last + leap, sorted(indices))
            case ("deliver", length, _):
                try:
                    trainer.daemon.deliver(bytes(length))
                except TrainerError:
                    break
            case ("reload", _, _):
                trainer.daemon.reload()
            case _:
                pass
        try:
            updates = trainer.take_updates()
        except TrainerError:
            break
        for update in updates:
            assert update.steps >= max(last, 11)
            assert 1 <= update.magnitude <= codec.MAGNITUDE_MAX
            np.testing.assert_array_equal(
                update.words, codec.decode(update.payload, len(update.words), WEIGHTS)
            )
            last = update.steps
        trainer.counters.load(Counter.OUTBOX_TAIL)
    assert last <= trainer.daemon.progress() <= last + STEPS_LEAP_MAX
    trainer.daemon.close()


@PATIENT
@given(st.integers(0, 2**32 - 1))
def test_random_bytes_in_the_whole_outbox_are_never_an_update_or_a_crash(seed: int) -> None:
    trainer = Trainer()
    random = np.random.default_rng(seed)
    trainer.outbox[:] = random.integers(0, 256, trainer.outbox.size, dtype=np.uint8)
    # A prefix and an entry header that hold, so that the payload is what is looked at.
    payload_bytes = int(random.integers(1, 500))
    trainer.outbox[:8] = np.frombuffer(np.array([20 + payload_bytes, GENERATION], "<u4").tobytes(), np.uint8)
    trainer.outbox[8:28] = np.frombuffer(
        layout.OUTBOX_ENTRY.pack(11, 1, int(random.integers(1, 1025)), 0.0), np.uint8
    )
    trainer.counters.store(Counter.OUTBOX_HEAD, entry_bytes(20 + payload_bytes))
    with pytest.raises(TrainerError, match="does not decode"):
        trainer.take()
    trainer.daemon.close()
