"""Part `sim`: three hashes for each seed of the simulator, a line a seed in frozen/sim-FAMILY.txt."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Final

from tests.oracle.files import FROZEN
from tests.oracle.subject import FAMILIES, trace_seed
from tests.oracle.trace import PARTS

SEEDS: Final = range(2000)
SAVED_EVERY: Final = 50  # seeds
CHUNK: Final = 8  # seeds that a process takes at a time

Hashes = tuple[str, ...]


def freeze(seeds: Sequence[int] | None, families: Sequence[str], processes: int) -> None:
    """Freeze seeds (default: SEEDS); those frozen before stay, and those done if this is cut off."""
    seeds = SEEDS if seeds is None else seeds
    for family in families:
        frozen = _load(family)
        for count, (seed, hashes) in enumerate(_hashes(family, seeds, processes), 1):
            frozen[seed] = hashes
            if count % SAVED_EVERY == 0:
                _save(family, frozen)
                print(f"{family}: {count} of {len(seeds)} seeds", flush=True)
        _save(family, frozen)


def check(seeds: Sequence[int] | None, families: Sequence[str], processes: int) -> Iterator[str]:
    """Yield a sentence for each seed (default: all that are frozen) that differs."""
    for family in families:
        frozen = _load(family)
        if not frozen:
            yield f"{family}: no seed is frozen"
        for seed, hashes in _hashes(family, sorted(frozen) if seeds is None else seeds, processes):
            if seed not in frozen:
                yield f"{family}:{seed} is not frozen"
            elif hashes != frozen[seed]:
                pairs = zip(PARTS, hashes, frozen[seed], strict=True)
                parts = ", ".join(part for part, now, then in pairs if now != then)
                yield f"{family}:{seed} differs in {parts} (python -m tests.oracle dump {family}:{seed})"


def dump(which: str) -> Iterator[str]:
    """Yield all lines behind the hashes of FAMILY:SEED; ValueError if there is no such seed."""
    family, _, seed = which.partition(":")
    if family not in FAMILIES or not seed.isdecimal():
        raise ValueError(f"{which!r} is not FAMILY:SEED, such as ring:17")
    trace = trace_seed(family, int(seed))
    for part in PARTS:
        for line in trace.lines(part):
            yield f"{part} {line}"


def _hashes(family: str, seeds: Sequence[int], processes: int) -> Iterator[tuple[int, Hashes]]:
    if processes == 1:
        yield from zip(seeds, map(partial(_hash_seed, family), seeds), strict=True)
        return
    with get_context("fork").Pool(processes) as pool:
        yield from zip(seeds, pool.imap(partial(_hash_seed, family), seeds, chunksize=CHUNK), strict=True)


def _hash_seed(family: str, seed: int) -> Hashes:
    gc.freeze()  # what a run makes lives as long as the run: cycles are looked for at its end, in that alone
    gc.disable()
    try:
        return trace_seed(family, seed).hashes()
    finally:
        gc.enable()
        gc.collect()
        gc.unfreeze()


def _load(family: str) -> dict[int, Hashes]:
    path = FROZEN / f"sim-{family}.txt"
    rows = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
    return {int(seed): tuple(hashes) for seed, *hashes in rows}


def _save(family: str, frozen: dict[int, Hashes]) -> None:
    lines = (" ".join((str(seed), *hashes)) for seed, hashes in sorted(frozen.items()))
    (FROZEN / f"sim-{family}.txt").write_text("\n".join(lines) + "\n")
