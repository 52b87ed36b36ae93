"""A residual pass on the device beside the same pass by the native core, compared bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.gpu.backends import Backend

UNTOUCHED = 0x7FA5A5A5  # a NaN that no sum has


@dataclass(frozen=True)
class Group:
    """As PassGroup, which belongs to a backend."""

    threshold: float
    ranges: tuple[tuple[int, int], ...]
    room: int


@dataclass(frozen=True)
class Swept:
    """What a pass left: bits of the target, words and counts of each group."""

    target: NDArray[np.uint32]
    words: list[list[int]]
    counts: list[tuple[int, ...]]
    missed: list[int | None]


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of bfloat16 numbers: float32 without their low bits."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def delta_of(kind: str, values: NDArray[np.float32]) -> NDArray[Any]:
    """These numbers as a delta of float32, float16 or bfloat16."""
    match kind:
        case "float16":
            return values.astype(np.float16)
        case "bfloat16":
            return bfloat16(values)
        case _:
            pass
    return values


def by_the_core(
    source: NDArray[np.float32], delta: NDArray[Any], groups: Sequence[Group], *, first: int = 0
) -> Swept:
    """Range after range, as the sweep of the numpy trainer does it. A delta of uint16 is of bfloat16."""
    target = np.full(len(source), UNTOUCHED, np.uint32)
    words, counts, missed = [], [], []
    for group in groups:
        room = np.empty(group.room, np.uint32)
        found, group_counts, first_missed = 0, [], None
        for begin, end in group.ranges:
            count, range_missed = codec.residual_pass(
                source[begin:end],
                _as_given(delta[begin:end]),
                target.view(np.float32)[begin:end],
                room[found:],
                threshold=group.threshold,
                first=first + begin,
            )
            group_counts.append(count)
            found += count
            if range_missed is not None and first_missed is None:
                first_missed = begin + range_missed
        words.append(room[:found].tolist())
        counts.append(tuple(group_counts))
        missed.append(first_missed)
    return Swept(target, words, counts, missed)


def on_the_device(
    gpu: Backend,
    source: NDArray[np.float32],
    delta: NDArray[Any],
    groups: Sequence[Group],
    *,
    first: int = 0,
    offsets: tuple[int, int, int] = (0, 0, 0),
    state: Any = None,
) -> Swept:
    """The same; source, delta and target begin so many elements behind where their memory does."""
    weights = len(source)
    begins = gpu.load("pass_state")
    kernels = gpu.load("kernels").Kernels()
    if state is None:
        state = kernels.make_state(weights, sum(len(group.ranges) for group in groups))
    device_source = _placed(gpu, source, offsets[0])
    device_delta = _placed(gpu, delta, offsets[1])
    around = 64
    memory = gpu.cupy.asarray(np.full(weights + 2 * around, UNTOUCHED, np.uint32))
    target = memory[around + offsets[2] :][:weights]
    rooms = [group.room for group in groups]
    words = gpu.cupy.asarray(np.full(sum(rooms) + around, UNTOUCHED, np.uint32))
    kernels.residual_pass(
        device_source,
        device_delta,
        target.view(np.float32),
        words[: sum(rooms)],
        state,
        [begins.PassGroup(group.threshold, group.ranges, group.room) for group in groups],
        first=first,
    )
    result = state.read()
    assert device_source.get().tobytes() == source.tobytes()
    assert device_delta.get().tobytes() == delta.tobytes()
    whole = memory.get()
    assert (whole[: around + offsets[2]] == UNTOUCHED).all()
    assert (whole[around + offsets[2] + weights :] == UNTOUCHED).all()
    all_words = words.get()
    lists = []
    for begin, room, counts in zip(np.cumsum([0, *rooms]), [*rooms, 0], [*result.counts, ()], strict=True):
        of_group = all_words[begin : begin + room] if room else all_words[begin:begin]
        lists.append(of_group[: sum(counts)].tolist())
        assert (of_group[sum(counts) :] == UNTOUCHED).all()
    assert (all_words[sum(rooms) :] == UNTOUCHED).all()
    return Swept(target.get(), lists[:-1], list(result.counts), list(result.missed))


def check(
    gpu: Backend, source: NDArray[np.float32], delta: NDArray[Any], groups: Sequence[Group], **how: Any
) -> Swept:
    """Both, which must be the same; returns it."""
    expected = by_the_core(source, delta, groups, first=how.get("first", 0))
    actual = on_the_device(gpu, source, delta, groups, **how)
    assert actual.counts == expected.counts
    assert actual.missed == expected.missed
    assert actual.words == expected.words
    differs = np.flatnonzero(actual.target != expected.target)
    assert not len(differs), (
        f"the targets differ from weight {differs[0]} on: {len(differs)} of {len(source)}"
    )
    return actual


def _as_given(delta: NDArray[Any]) -> Any:
    """The delta as the core takes it."""
    if delta.dtype != np.uint16:
        return delta
    return SimpleNamespace(dtype=SimpleNamespace(name="bfloat16", isnative=True), view=lambda _: delta)


def _placed(gpu: Backend, values: NDArray[Any], offset: int) -> Any:
    memory = gpu.cupy.zeros(len(values) + offset + 8, values.dtype)
    placed = memory[offset:][: len(values)]
    placed.set(values)
    return placed
