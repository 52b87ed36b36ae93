"""A trainer's side of evaluations, without a process: what client/evaluate.py does, on numbers by chance.

The point of an evaluation stands for itself: its digest is the seed of all its numbers, and follows from the
totals of the evaluation before. `Reference` makes the same evaluations in one place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.closure.scales import corrected_limits, first_limits, next_limits
from p2psgd.core.closure.sums import ClosureMemory
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAnswered, EvaluationAsked, pack_exponents
from p2psgd.wire.fixed_point import (
    NOTHING,
    Exponents,
    Sums,
    borders_of,
    count_groups,
    exponents_of,
    round_numbers,
)


def compute(
    digest: int, portion: int, borders: NDArray[np.int64], *, spread: int = 6
) -> tuple[float, NDArray[np.float64]]:
    """Loss and gradient of a portion at this point; the size of all numbers goes with the point."""
    chance = np.random.default_rng([digest, portion])
    size = 2.0 ** (digest % (2 * spread + 1) - spread)
    gradient = size * chance.normal(size=int(borders[-1]) - 1)
    return float(size * chance.random()), gradient


def next_digest(digest: int, sums: Sums) -> int:
    """The point that an optimiser comes to."""
    hashed = hashlib.blake2b(sums.tobytes() + digest.to_bytes(8, "little"), digest_size=8)
    return int.from_bytes(hashed.digest(), "little")


@dataclass
class Reference:
    """The evaluations of a run, as one process makes them: digest, limits and sums of each, by number."""

    sizes: tuple[int, ...]
    portions: int
    first_digest: int = 1
    sums: list[Sums] = field(default_factory=list)
    limits: list[Exponents] = field(default_factory=list)
    exponents: list[Exponents] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.borders = borders_of(self.sizes)
        self.digests = [self.first_digest]

    def evaluation(self, number: int) -> tuple[int, Exponents, Sums]:
        """Digest, limits and sums of an evaluation, from 1."""
        while len(self.sums) < number:
            self._make()
        return self.digests[number - 1], self.limits[number - 1], self.sums[number - 1]

    def _make(self) -> None:
        digest = self.digests[-1]
        parts = [compute(digest, portion, self.borders) for portion in range(self.portions)]
        exponents = np.full(count_groups(len(self.sizes)), NOTHING, np.int16)
        for loss, gradient in parts:
            exponents = np.maximum(exponents, exponents_of(loss, gradient, self.borders))
        limits = (
            next_limits(self.limits[-1], self.exponents[-1]) if self.limits else first_limits(len(exponents))
        )
        corrected = corrected_limits(limits, exponents)
        limits = limits if corrected is None else corrected
        total = np.zeros(int(self.borders[-1]), np.int64)
        for loss, gradient in parts:
            total += round_numbers(loss, gradient, limits, self.borders, self.portions)
        self.sums.append(total)
        self.limits.append(limits)
        self.exponents.append(exponents)
        self.digests.append(next_digest(digest, total))


class Evaluator:
    """The trainer of one node. `evaluations`: how many it has completed; `errors`: how those ended that did
    not.
    """

    def __init__(self, memory: ClosureMemory, reference: Reference) -> None:
        self.memory = memory
        self.reference = reference
        self.evaluations = 0
        self.computed = 0
        self.digest = reference.first_digest
        self.errors: list[str] = []
        self.fails: dict[int, str] = {}  # portions that it cannot compute, and why
        self._sum = 0
        self._pending: dict[int, Sums | None] = {}
        self._added: tuple[int, ...] = ()

    def begin(self) -> EvaluationAsked:
        """Ask for the next evaluation."""
        return EvaluationAsked(self.evaluations + 1, self.digest, self.reference.portions, self._sum)

    def follow(self, answer: EvaluationAnswered) -> int | None:
        """Do what an answer says, up to the portion to compute, which is returned."""
        if answer.sum != self._sum:
            self._sum = answer.sum
            self._pending.clear()
            self.memory.parts[:] = 0
        for portion in answer.drop:
            self._pending.pop(portion)
        for portion in answer.add:
            numbers = self._pending.pop(portion)
            if numbers is not None:
                self.memory.parts += numbers
        self._added = answer.add
        if answer.error:
            self.errors.append(answer.error)
        if answer.done:
            self.evaluations += 1
            digest, limits, sums = self.reference.evaluation(self.evaluations)
            assert digest == self.digest, "another point"
            assert np.frombuffer(answer.limits, "<i2").tolist() == limits.tolist(), "other limits"
            assert (self.memory.totals == sums).all(), "the totals are not those of one process"
            self.digest = next_digest(self.digest, self.memory.totals)
        return answer.compute

    def compute(self, answer: EvaluationAnswered, portion: int | None) -> EvaluationAsked:
        """Compute the portion, and ask for what comes next."""
        added, self._added = self._added, ()
        evaluation, portions = self.evaluations + 1, self.reference.portions
        if portion is None:
            return EvaluationAsked(evaluation, self.digest, portions, self._sum, added)
        if portion in self.fails:
            return EvaluationAsked(
                evaluation,
                self.digest,
                portions,
                self._sum,
                added,
                portion,
                failed=self.fails[portion],
            )
        self.computed += 1
        loss, gradient = compute(self.digest, portion, self.reference.borders)
        exponents = exponents_of(loss, gradient, self.reference.borders)
        limits = np.frombuffer(answer.limits, "<i2").astype(np.int16)
        numbers, checksum = None, 0
        if (exponents <= limits).all():
            numbers = round_numbers(loss, gradient, limits, self.reference.borders, portions)
            checksum = codec.crc32c(numbers.tobytes())
        self._pending[portion] = numbers
        return EvaluationAsked(
            evaluation,
            self.digest,
            portions,
            self._sum,
            added,
            portion,
            checksum,
            pack_exponents(exponents),
        )
