"""Judge whether the codec keeps what it was designed for, set by set: this project against each library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks import Figure
from benchmarks.codec.measure import Measured, SetResult

NEAR: Final = 1.03  # a library is a rival in size up to 3 % more bits
SPEED_TARGET: Final = 3.0  # times as fast as every rival, both ways


def verdicts(result: SetResult) -> Iterator[Figure]:
    """Each target with what was measured."""
    mine, name = result.contenders[0], result.name
    libraries = [each for each in result.contenders if each.library]
    better = [each.name for each in libraries if smaller_and_faster(each, mine)]
    if libraries:
        yield Figure(
            f"{name}: smaller and faster",
            len(better),
            "libraries",
            verdict(not better, "none", ", ".join(better)),
        )
    rivals = [each for each in libraries if each.bits <= NEAR * mine.bits]
    if rivals:
        yield nearest(f"{name}: speed to rivals alone", mine, rivals)
        joined = [each.joined(result.numpy) for each in rivals]
        yield nearest(f"{name}: speed to rivals, entries to entries", mine, joined)
    if result.real:
        saved = 100 * (1 - result.bits / result.rice)
        yield Figure(f"{name}: bits below one Rice parameter", saved, "%", verdict(saved >= 3, "3 or more"))
    over = 100 * (result.bits / result.bound - 1)
    yield Figure(f"{name}: bits over the bound", over, "%", verdict(over <= 2.5, "at most 2.5"))


def smaller_and_faster(library: Measured, mine: Measured) -> bool:
    """Faster one way is enough to count."""
    return library.bits < mine.bits and (library.encode > mine.encode or library.decode > mine.decode)


def nearest(name: str, mine: Measured, rivals: list[Measured]) -> Figure:
    """The least ratio of speeds over all rivals in size and both ways."""
    ratio, whose = min(
        (ratio, f"{each.name} {way}")
        for each in rivals
        for way, ratio in (("encoding", mine.encode / each.encode), ("decoding", mine.decode / each.decode))
    )
    kept = verdict(ratio >= SPEED_TARGET, f"{SPEED_TARGET:g} or more")
    return Figure(name, ratio, "times", f"{whose}; {kept}")


def verdict(kept: bool, target: str, instead: str = "") -> str:
    return f"target {target}: {'kept' if kept else 'missed'}" + (f" ({instead})" if instead else "")
