"""The digest of an evaluation's data: other data have another one, whatever kind of sequence they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import p2psgd
from p2psgd.base.errors import TrainerError
from p2psgd.client.data_digest import (
    NUMBERS_MAX,
    ROWS_MAX,
    CountedSamples,
    DataDigest,
    digest_data,
    sampled_rows,
)

ROWS = np.random.default_rng(1).normal(size=(300, 7))


class Unreadable:
    """A sequence whose samples cannot be read now."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, part: Any) -> Any:
        raise OSError("the disk is away")


@pytest.mark.parametrize(
    "other",
    [
        ROWS + 1,
        ROWS[::-1],
        ROWS.astype(np.float32),
        ROWS.reshape(300, 7, 1),
        ROWS[1:],
        (ROWS, ROWS),
        300,
        Unreadable(300),
        list(ROWS),
    ],
)
def test_other_data_have_another_digest(other: Any) -> None:
    assert digest_data(other) != digest_data(ROWS)


def test_the_same_data_have_the_same_digest_in_any_layout() -> None:
    spread = np.zeros((600, 14))[::2, ::2]
    spread[:] = ROWS
    assert digest_data(ROWS.copy()) == digest_data(np.asfortranarray(ROWS)) == digest_data(spread)
    assert digest_data((ROWS, 300)) == digest_data((ROWS.copy(), np.int64(300)))


@pytest.mark.parametrize("samples", [1, 2, 63, 64, 65, 100_000])
def test_rows_are_spread_from_the_first_to_the_last(samples: int) -> None:
    rows = sampled_rows(samples)
    assert rows[0] == 0
    assert rows[-1] == samples - 1
    assert len(set(rows)) == len(rows) == min(samples, ROWS_MAX)


def test_no_more_than_some_numbers_of_some_rows_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    class Counting:
        def __init__(self, digest_size: int) -> None:
            pass

        def update(self, piece: bytes) -> None:
            hashed.append(len(piece))

        def digest(self) -> bytes:
            return b""

    monkeypatch.setattr("p2psgd.client.data_digest.hashlib.blake2b", Counting)
    digest_data(np.zeros((1000, 50, 200)))
    assert sum(hashed) <= ROWS_MAX * (8 * NUMBERS_MAX + 8) + 100


@pytest.mark.parametrize(
    "data",
    [
        Unreadable(5),
        ["a", "b"],
        [ROWS, object()],
        [[1, 2], [3]],
        [10**400],
        np.array([object(), {}], object),
        np.zeros(3, "f4,i4"),
        np.zeros((3, 0)),
        np.array(["a", "b"]),
        b"abc",
        range(3),
        CountedSamples(3, b"x"),
    ],
)
def test_odd_data_have_a_digest(data: Any) -> None:
    assert len(digest_data(data)) == 8


def test_it_is_computed_once_for_the_same_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []

    def counting(data: Any) -> bytes:
        computed.append(data)
        return digest_data(data)

    monkeypatch.setattr("p2psgd.client.data_digest.digest_data", counting)
    digest = DataDigest()
    first, labels = ROWS.copy(), np.arange(300)
    for data in ((first, labels), (first, labels), first, first, ROWS, 300, 301):
        assert digest.of(data) == digest_data(data)
    assert len(computed) == 5


def test_an_evaluation_asks_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[int] = []
    with p2psgd.attach(np.zeros(6, np.float32), mode="closure", alone=True) as link:
        evaluations = link._evaluations
        assert evaluations is not None
        exchange = evaluations._exchange

        def noting(request: Any) -> Any:
            digests.append(request.digest)
            return exchange(request)

        monkeypatch.setattr(evaluations, "_exchange", noting)
        for data in (ROWS, (ROWS, np.arange(300)), list(ROWS), 2 * ROWS):
            for portions in (3, 9):
                link.evaluate(lambda x, part: (1.0, x), np.zeros(6), data, portions=portions)
    assert len(set(digests)) == 4


def test_a_trainer_with_other_data_gets_no_results_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with p2psgd.attach(np.zeros(6, np.float32), mode="closure", alone=True) as link:
        value, _ = link.evaluate(lambda x, part: (1.0, x), np.zeros(6), ROWS)
        assert math.isfinite(value)
        assert link._evaluations is not None
        link._evaluations.number = 0  # as a trainer that begins again
        with pytest.raises(TrainerError, match="asks for evaluation 1 with digest"):
            link.evaluate(lambda x, part: (1.0, x), np.zeros(6), 2 * ROWS)
