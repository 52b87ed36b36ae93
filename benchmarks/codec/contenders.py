"""List the codecs that are compared: this project's codec on each of its paths, and what it is compared with.

Libraries know no signs, so they get gaps or indices, whichever suits them best, made before the clock
starts, and one bit per index is added to their size. Their times are thus those of the library alone, which
favours them: ours go from entries to bytes and back with signs and all checks. What numpy needs for the rest
of that job (`through_numpy`) is measured beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.codec.bound import gaps_of
from benchmarks.codec.sets import Words
from p2psgd.wire import _native, codec

OURS: Final = "p2psgd"
RAW: Final = "raw entries"


@dataclass(frozen=True)
class Contender:
    """`prepare` makes of an update what `encode` takes (not timed); `decode(bytes, count)` gives that back.

    `sign_bits`: added to its size for each index, 0 if it carries the signs. `enter` is called before any
    of its work.
    """

    name: str
    prepare: Callable[[Words], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any, int], Any]
    sign_bits: int = 1
    library: bool = True
    enter: Callable[[], object] = lambda: None


def ours(weights: int) -> list[Contender]:
    """The codec on each path that runs here; the last is the one it takes by itself."""

    def on(path: str) -> Contender:
        return Contender(
            f"{OURS} {path}",
            prepare=lambda words: words,
            encode=lambda words: codec.encode(words, weights),
            decode=lambda payload, count: codec.decode(payload, count, weights),
            sign_bits=0,
            library=False,
            enter=lambda: _native.use_path(path),
        )

    return [on(name) for name, _, runs_here in _native.paths() if runs_here]


def raw() -> Contender:
    """A copy of the words."""
    return Contender(
        RAW,
        prepare=lambda words: words,
        encode=lambda words: words.tobytes(),
        decode=lambda raw, _: np.frombuffer(raw, np.uint32).copy(),
        sign_bits=0,
        library=False,
    )


def through_numpy() -> Contender:
    """Turn entries into gaps and packed signs and back: the work that a library leaves to its caller."""

    def split(words: Words) -> tuple[Words, NDArray[np.uint8]]:
        return gaps_of(words), np.packbits((words & 1).astype(np.uint8))

    def join(parts: tuple[Words, NDArray[np.uint8]], count: int) -> Words:
        words = np.cumsum(parts[0] + np.uint32(1), dtype=np.uint32)
        words -= 1
        words <<= 1
        words |= np.unpackbits(parts[1], count=count)
        return words

    return Contender(
        "numpy", prepare=lambda words: words, encode=split, decode=join, sign_bits=0, library=False
    )
