"""What a trainer may write into its outbox in ring mode, and what happens if it writes anything else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.ring_buffer import COUNTERS_WORDS, Counter, Counters, RingWriter
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.trainer_memory import STEPS_LEAP_MAX, Attachment, Given
from p2psgd.ipc.trainer_session import TAKE_ENTRIES, TAKE_INDICES
from p2psgd.wire import codec
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import ARRAY, CHANGES, PARTS_MAX, BucketContributed, ContributionMade
from tests.ipc.daemons import PATIENT, make_words

WEIGHTS = 3000
GENERATION = 5
RING_BYTES = 1 << 20


class Trainer:
    """An attachment to a ring and a trainer's view of it, with no manners at all."""

    def __init__(self, payload: str, *, opened: int = 1) -> None:
        self.daemon = Attachment(
            coordinates=WEIGHTS,
            mode=Mode(payload),
            generation=GENERATION,
            steps=10,
            half=0,
            stopping=False,
            inbox_bytes=1 << 16,
            outbox_bytes=RING_BYTES,
        )
        _, outbox, counters, _, _ = self.daemon.descriptors
        self.outbox = map_segment(outbox, np.uint8, RING_BYTES, Access.WRITE)
        self.counters = Counters(map_segment(counters, np.uint64, COUNTERS_WORDS, Access.WRITE))
        self.writer = RingWriter(self.outbox, GENERATION)
        for _ in range(opened):
            self.open()

    def open(self) -> None:
        self.daemon.open_round(7, contributors=3, sums=1, adding_us=4, sending_us=5)

    def write(self, entry: bytes) -> None:
        self.writer.put(entry)
        self.counters.store(Counter.OUTBOX_HEAD, self.writer.head)

    def update(self, steps: int, indices: list[int], step: int = 1) -> None:
        payload = codec.encode(make_words(np.array(indices), np.zeros(len(indices))), WEIGHTS)
        self.write(layout.OUTBOX_ENTRY.pack(steps, step, len(indices), 0.0) + payload)

    def close(self, steps: int) -> None:
        self.write(layout.OUTBOX_ENTRY.pack(steps, 0, 0, 0.0))

    def bucket(
        self, offset: int, count: int, *, kind: int = CHANGES, steps: int = 11, name: bytes = b"name"
    ) -> None:
        shape = b"(3,)"
        self.write(layout.BUCKET_ENTRY.pack(steps, kind, offset, count, len(name)) + name + shape)

    def take(self) -> list[Given]:
        return self.daemon.take(TAKE_ENTRIES, TAKE_INDICES)

    def end(self) -> None:
        self.daemon.close()


@pytest.fixture
def sparse() -> Iterator[Trainer]:
    trainer = Trainer("sparse")
    yield trainer
    trainer.end()


@pytest.fixture
def dense() -> Iterator[Trainer]:
    trainer = Trainer("dense")
    yield trainer
    trainer.end()


def test_an_opened_round_comes_with_what_was_before_it(sparse: Trainer) -> None:
    words = [Counter.ROUNDS_OPENED, Counter.CONTRIBUTORS, Counter.SUMS, Counter.ADDING_US, Counter.SENDING_US]
    assert list(map(sparse.counters.load, words)) == [1, 3, 1, 4, 5]
    sparse.open()
    assert sparse.daemon.entries.opened == sparse.counters.load(Counter.ROUNDS_OPENED) == 2


# -- sparse


def test_a_share_is_taken_when_it_is_whole(sparse: Trainer) -> None:
    sparse.update(11, [1, 2], step=3)
    sparse.update(11, [5], step=4)
    assert sparse.take() == []
    assert sparse.daemon.entries.steps == 10
    assert sparse.counters.load(Counter.OUTBOX_TAIL) == sparse.writer.head
    sparse.close(11)
    (share,) = sparse.take()
    assert isinstance(share, ContributionMade)
    sent = [(update.magnitude, list(update.words >> 1)) for update in share.updates]
    assert sent == [(3, [1, 2]), (4, [5])]
    assert share.steps == sparse.daemon.entries.steps == 11


def test_a_share_of_many_updates_is_taken_in_one_turn(sparse: Trainer) -> None:
    for index in range(TAKE_ENTRIES + 7):
        sparse.update(11, [index], step=1 + index)
    sparse.close(11)
    (share,) = sparse.take()
    assert isinstance(share, ContributionMade)
    assert len(share.updates) == TAKE_ENTRIES + 7


def test_an_empty_share_is_one_of_its_mini_batch_or_of_none(sparse: Trainer) -> None:
    sparse.open()
    sparse.close(10)
    sparse.close(11)
    assert sparse.take() == [ContributionMade(10, ()), ContributionMade(11, ())]


def test_a_second_share_without_a_round_is_refused_and_the_first_taken(sparse: Trainer) -> None:
    sparse.close(11)
    sparse.update(12, [1])
    assert sparse.take() == [ContributionMade(11, ())]
    with pytest.raises(TrainerError, match="a contribution to a round that is not open: 1 were opened"):
        sparse.take()


@pytest.mark.parametrize("steps", [0, 10, 10 + STEPS_LEAP_MAX + 1, 2**64 - 1])
def test_a_mini_batch_that_cannot_follow_is_refused(sparse: Trainer, steps: int) -> None:
    sparse.update(steps, [1])
    with pytest.raises(TrainerError, match=f"step {steps} cannot follow step 10"):
        sparse.take()


def test_a_share_of_two_mini_batches_is_refused(sparse: Trainer) -> None:
    sparse.update(11, [1])
    sparse.close(12)
    for _ in range(2):
        with pytest.raises(TrainerError, match="steps 11 and 12 in one contribution"):
            sparse.take()


@pytest.mark.parametrize(
    ("step", "count", "more", "words"),
    [
        (0, 1, b"", "magnitude 0"),
        (1, 0, b"", "0 indices"),
        (0, 0, b"more", "magnitude 0"),
        (1, 1, b"", "does not decode"),
    ],
)
def test_a_closing_entry_that_is_none_is_refused(
    sparse: Trainer, step: int, count: int, more: bytes, words: str
) -> None:
    sparse.write(layout.OUTBOX_ENTRY.pack(11, step, count, 0.0) + more)
    with pytest.raises(TrainerError, match=words):
        sparse.take()


def test_a_share_has_an_end(sparse: Trainer) -> None:
    for number in range(PARTS_MAX):
        sparse.update(11, [1])
        if number % 1000 == 0:
            assert sparse.take() == []
    sparse.update(11, [1])
    with pytest.raises(TrainerError, match="a contribution of more than 4096 updates"):
        sparse.take()


def test_a_share_has_no_more_indices_than_a_send(sparse: Trainer) -> None:
    indices = list(range(codec.indices_max(WEIGHTS)))
    for _ in range(1 + PARTS_MAX // len(indices)):
        sparse.update(11, indices)
        assert sparse.take() == []
    sparse.update(11, indices)
    with pytest.raises(TrainerError, match="a contribution of more than 4096 updates or 7096 indices"):
        sparse.take()


# -- dense


def test_buckets_are_taken_one_by_one_and_the_last_one_counts(dense: Trainer) -> None:
    dense.bucket(1000, 2000)
    assert dense.take() == [BucketContributed(CHANGES, 1000, 2000, "name", "(3,)")]
    assert dense.daemon.entries.steps == 10
    dense.bucket(0, 1000)
    assert dense.take() == [BucketContributed(CHANGES, 0, 1000, "name", "(3,)")]
    assert dense.daemon.entries.steps == 11


def test_a_bucket_after_a_whole_share_waits_for_a_round(dense: Trainer) -> None:
    dense.bucket(0, WEIGHTS)
    dense.bucket(0, WEIGHTS, steps=12)
    assert len(dense.take()) == 1
    with pytest.raises(TrainerError, match="a contribution to a round that is not open"):
        dense.take()


def test_an_array_is_a_share_by_itself(dense: Trainer) -> None:
    dense.bucket(0, layout.DENSE_NUMBERS_MIN, kind=ARRAY, steps=10)
    assert dense.take() == [BucketContributed(ARRAY, 0, layout.DENSE_NUMBERS_MIN, "name", "(3,)")]
    dense.open()
    dense.bucket(0, WEIGHTS)
    assert len(dense.take()) == 1
    assert dense.daemon.entries.steps == 11


@pytest.mark.parametrize(
    ("offset", "count", "words"),
    [
        (0, 0, "a bucket of weights 0 to 0 of 3000"),
        (0, 3001, "a bucket of weights 0 to 3001 of 3000"),
        (2999, 2, "of 3000"),
        (2**32 - 1, 2**32 - 1, "of 3000"),
        (99, 2, "weights 99 to 101 are in a bucket of this round already"),
        (150, 1, "already"),
        (0, 3000, "already"),
    ],
)
def test_a_bucket_that_is_none_of_the_weights_left_is_refused(
    dense: Trainer, offset: int, count: int, words: str
) -> None:
    dense.bucket(100, 100)
    dense.bucket(offset, count)
    assert len(dense.take()) == 1
    with pytest.raises(TrainerError, match=words):
        dense.take()


@pytest.mark.parametrize(
    ("offset", "count", "kind"),
    [(0, 0, ARRAY), (1, 5, ARRAY), (0, layout.DENSE_NUMBERS_MIN + 1, ARRAY), (0, 5, 2), (0, 5, 2**32 - 1)],
)
def test_an_array_that_cannot_be_is_refused(dense: Trainer, offset: int, count: int, kind: int) -> None:
    dense.bucket(offset, count, kind=kind)
    with pytest.raises(TrainerError, match="cannot be here"):
        dense.take()


def test_an_array_within_a_round_of_changes_is_refused(dense: Trainer) -> None:
    dense.bucket(0, 5)
    dense.bucket(0, 5, kind=ARRAY)
    dense.take()
    with pytest.raises(TrainerError, match="cannot be here"):
        dense.take()


@pytest.mark.parametrize("steps", [10, 9, 2**64 - 1])
def test_a_bucket_of_a_mini_batch_that_cannot_follow_is_refused(dense: Trainer, steps: int) -> None:
    dense.bucket(0, 5, steps=steps)
    with pytest.raises(TrainerError, match="cannot follow"):
        dense.take()


@pytest.mark.parametrize(
    ("name", "length", "words"),
    [(b"\xff\xfe", 2, "not UTF-8"), (b"name", 9, "a name of 9"), (b"n" * 201, 201, "a name of 201")],
)
def test_a_name_that_cannot_be_is_refused(dense: Trainer, name: bytes, length: int, words: str) -> None:
    dense.write(layout.BUCKET_ENTRY.pack(11, CHANGES, 0, 5, length) + name)
    with pytest.raises(TrainerError, match=words):
        dense.take()


steps, numbers = st.integers(9, 14), st.integers(0, 3100)
rubbish = st.lists(
    st.one_of(
        st.tuples(st.just("counter"), st.sampled_from(list(Counter)), st.integers(0, 2**64 - 1)),
        st.tuples(st.just("outbox"), st.integers(0, 300), st.binary(max_size=60)),
        st.tuples(st.just("bytes"), st.just(0), st.binary(min_size=1, max_size=500)),
        st.tuples(
            st.just("update"), st.integers(9, 14), st.lists(st.integers(0, 2999), min_size=1, unique=True)
        ),
        st.tuples(st.just("close"), steps, st.just(b"")),
        st.tuples(
            st.just("bucket"), st.integers(0, 3), st.tuples(st.integers(0, 3100), st.integers(0, 3100))
        ),
        st.tuples(st.just("open"), st.just(0), st.just(b"")),
    ),
    max_size=25,
)


@PATIENT
@given(rubbish, st.sampled_from(["sparse", "dense"]))
def test_whatever_lies_in_shared_memory_the_daemon_takes_one_whole_share_a_round_or_refuses(
    actions: list[tuple[str, int, object]], payload: str
) -> None:
    trainer = Trainer(payload, opened=0)
    shares, covered = 0, 0
    for action in actions:
        match action:
            case ("counter", counter, int(value)):
                trainer.counters.store(Counter(counter), value)
            case ("outbox", offset, bytes(data)):
                trainer.outbox[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
            case ("bytes", _, bytes(data)):
                trainer.write(data)
            case ("update", steps, list(indices)):
                trainer.update(steps, sorted(indices))
            case ("close", steps, _):
                trainer.close(steps)
            case ("bucket", kind, (int(offset), int(count))):
                trainer.bucket(offset, count, kind=kind)
            case _:
                assert action[0] == "open"
                trainer.open()
        try:
            given = trainer.take()
        except TrainerError:
            break
        for each in given:
            if isinstance(each, ContributionMade):
                assert len({each.steps, *(update.steps for update in each.updates)}) == 1
                shares += 1
                continue
            assert isinstance(each, BucketContributed)
            assert each.count >= 1
            assert each.kind == ARRAY or each.offset + each.count <= WEIGHTS
            covered += each.count if each.kind == CHANGES else 0
            shares += each.kind == ARRAY
        assert shares + covered // WEIGHTS <= trainer.daemon.entries.opened
    trainer.end()
