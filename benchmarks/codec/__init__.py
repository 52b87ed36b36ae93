"""Payloads: bits per index against a bound, and speed against libraries, one thread, same sets, same run.

`--recording NAME=FILE` adds updates that a training really sent: FILE is a copy of `run/own-*.rec` in the
state of a node, made while it runs. `--plot FILE` draws the result, `--page FILE` puts tables and verdicts
between two marks of a page of docs/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import Figure
from benchmarks.codec.libraries import libraries
from benchmarks.codec.measure import Measured, SetResult, measure
from benchmarks.codec.sets import WEIGHTS_PER_INDEX, recorded_set, synthetic_sets, uniform_words
from benchmarks.codec.verdicts import verdicts

__all__ = ["WEIGHTS_PER_INDEX", "run", "uniform_words"]


def run(
    *,
    large: bool,
    recordings: Sequence[tuple[str, Path]] = (),
    plot: Path | None = None,
    page: Path | None = None,
) -> list[Figure]:
    """Large: updates of 17,176 indices of 14.6 M weights, and more rounds."""
    contenders, missing = libraries()
    sets = synthetic_sets(count=17_176 if large else 1_000, updates=16 if large else 2)
    sets += [recorded_set(name, path) for name, path in recordings]
    results = [measure(each, contenders, rounds=25 if large else 3) for each in sets]
    if plot:
        from benchmarks.codec.plot import draw  # noqa: PLC0415  (matplotlib, only where a plot is wanted)

        draw(results, plot)
    if page:
        from benchmarks.codec.page import write  # noqa: PLC0415

        write(results, page)
    figures = [figure for result in results for figure in figures_of(result)]
    return [*figures, Figure("libraries not installed", len(missing), "packages", ", ".join(missing))]


def figures_of(result: SetResult) -> Iterator[Figure]:
    """Return one figure for each contender, then the verdicts."""
    name = result.name
    yield Figure(
        f"{name}: indices", result.indices, "indices", f"in {result.updates} updates; {result.checksum}"
    )
    for each in result.contenders:
        yield Figure(f"{name}: {each.name}", each.bits, "bits per index", speeds(each))
    rest = result.numpy
    yield Figure(f"{name}: numpy's part beside a library", rest.bits, "bits per index", speeds(rest))
    for what, bits in (
        ("p2psgd", result.bits),
        ("one Rice parameter, a bit per sign", result.rice),
        ("log2 C(P, n) + entropy of the signs", result.bound),
    ):
        yield Figure(f"{name}: {what}", bits, "bits per index", "all updates")
    yield from verdicts(result)


def speeds(each: Measured) -> str:
    return f"encode {each.encode / 1e6:7.1f}, decode {each.decode / 1e6:7.1f} M indices/s"
