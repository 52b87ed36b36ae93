"""Sizes and speeds of all contenders on one set, in one run and taken in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import checksum
from benchmarks.codec.bound import bound_bits, rice_bits
from benchmarks.codec.contenders import OURS, Contender, ours, raw, through_numpy
from benchmarks.codec.sets import UpdateSet
from p2psgd.wire import _native, codec


@dataclass(frozen=True)
class Measured:
    """A contender on one set: bits per index with its sign, indices per second (medians over the rounds)."""

    name: str
    bits: float
    encode: float
    decode: float
    library: bool = False

    def joined(self, numpy: Measured) -> Measured:
        """Its speeds when numpy does the rest of the job: a library from entries to bytes, and back."""
        if not self.library:
            return self
        encode = 1 / (1 / self.encode + 1 / numpy.encode)
        return replace(self, encode=encode, decode=1 / (1 / self.decode + 1 / numpy.decode))


@dataclass(frozen=True)
class SetResult:
    """A set's figures. `bits`, `rice`, `bound`: per index over all of its updates, the others over the timed.

    `contenders[0]` is this project's codec on the path that it takes by itself; `numpy` has the speeds of
    going from entries to gaps and signs, and back.
    """

    name: str
    real: bool
    updates: int
    indices: int
    bits: float
    rice: float
    bound: float
    contenders: list[Measured]
    numpy: Measured
    checksum: str


def measure(updates: UpdateSet, libraries: list[Contender], *, rounds: int) -> SetResult:
    """Every contender codes every timed update, `rounds` times."""
    path = _native.path()
    contenders = [*ours(updates.weights), *libraries, raw(), through_numpy()]
    try:
        measured = [*race(updates, contenders, rounds=rounds)]
        payloads = [codec.encode(words, updates.weights) for words in updates.updates]
    finally:
        _native.use_path(path)
    mine = f"{OURS} {path}"
    measured.sort(key=lambda each: each.name != mine)  # stable: all others keep their order
    indices = sum(map(len, updates.updates))
    return SetResult(
        updates.name,
        updates.real,
        len(updates.updates),
        indices,
        bits=8 * sum(map(len, payloads)) / indices,
        rice=sum(map(rice_bits, updates.updates)) / indices,
        bound=sum(bound_bits(words, updates.weights) for words in updates.updates) / indices,
        contenders=measured[:-1],
        numpy=measured[-1],
        checksum=checksum(b"".join(payloads)),
    )


def race(updates: UpdateSet, contenders: list[Contender], *, rounds: int) -> Iterable[Measured]:
    """Sizes, then speeds; an AssertionError if a contender does not give back what it got."""
    indices = sum(map(len, updates.timed))
    sizes: list[int] = []
    tasks: list[tuple[Callable[[], object], Callable[[], object]]] = []
    for each in contenders:
        each.enter()
        inputs = [each.prepare(words) for words in updates.timed]
        coded = [each.encode(given) for given in inputs]
        decodes = [(blob, len(words)) for blob, words in zip(coded, updates.timed, strict=True)]
        for given, pair in zip(inputs, decodes, strict=True):
            assert raw_bytes(each.decode(*pair)) == raw_bytes(given), f"{each.name} lost something"
        sizes.append(sum(len(raw_bytes(blob)) for blob in coded))
        tasks.append((partial(encode_all, each, inputs), partial(decode_all, each, decodes)))
    seconds = [median_seconds(way, rounds=rounds) for way in zip(*tasks, strict=True)]
    for each, size, encode, decode in zip(contenders, sizes, *seconds, strict=True):
        bits = 8 * size / indices + each.sign_bits
        yield Measured(each.name, bits, indices / encode, indices / decode, each.library)


def encode_all(contender: Contender, inputs: list[Any]) -> None:
    contender.enter()
    for given in inputs:
        contender.encode(given)


def decode_all(contender: Contender, coded: list[tuple[Any, int]]) -> None:
    contender.enter()
    for blob, count in coded:
        contender.decode(blob, count)


def median_seconds(tasks: Iterable[Callable[[], object]], *, rounds: int) -> list[float]:
    """The median time of each, taken in turns, so that a slow moment of the machine hits all of them.

    This thread's CPU time: waiting for a processor that others use is not the contender's. None of them
    starts threads of its own.
    """
    works = list(tasks)
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, times in zip(works, seconds, strict=True):
            begin = time.thread_time()
            work()
            times.append(time.thread_time() - begin)
    return [statistics.median(times) for times in seconds]


def raw_bytes(coded: Any) -> bytes:
    """The bytes of whatever a contender makes: bytes, an array, or arrays."""
    if isinstance(coded, tuple):
        return b"".join(map(raw_bytes, coded))
    return coded if isinstance(coded, bytes) else np.ascontiguousarray(coded).tobytes()
