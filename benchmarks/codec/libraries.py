"""Libraries that code integers, each in the way that suits gaps or indices best; which of them are installed.

Found by name when they are asked for: they are the extra `bench`, and a bench without them still runs.
"""

from __future__ import annotations

import importlib
from array import array
from types import ModuleType
from typing import Final

import numpy as np

from benchmarks.codec.bound import gaps_of
from benchmarks.codec.contenders import Contender
from benchmarks.codec.sets import Words


def pcodec(module: ModuleType) -> list[Contender]:
    """Levels: a fast one, the default, the smallest."""
    standalone = importlib.import_module("pcodec.standalone")

    def at(level: int) -> Contender:
        config = module.ChunkConfig(
            compression_level=level,
            delta_spec=module.DeltaSpec.no_op(),  # gaps have no order worth a delta
            mode_spec=module.ModeSpec.classic(),
        )
        return Contender(
            f"pcodec {level}",
            prepare=gaps_of,
            encode=lambda gaps: standalone.simple_compress(gaps, config),
            decode=lambda coded, _: standalone.simple_decompress(coded),
        )

    return [at(level) for level in (4, 8, 12)]


def libaec(module: ModuleType) -> list[Contender]:
    """Adaptive Golomb-Rice in blocks of 64 gaps, its smallest and fastest, without a predictor."""
    options = {"bitspersample": 32, "flags": 0, "blocksize": 64, "rsi": 128}

    def decode(coded: bytes, count: int) -> Words:
        gaps = np.empty(-(-count // 64) * 64, np.uint32)  # it writes whole blocks
        module.aec_decode(coded, **options, out=gaps)
        return gaps[:count]

    return [
        Contender(
            "libaec",
            prepare=gaps_of,
            encode=lambda gaps: module.aec_encode(gaps, **options),
            decode=decode,
        )
    ]


def fastpfor(module: ModuleType) -> list[Contender]:
    """The usual one, the smallest, the fastest, and the best known of whole bytes."""
    room = np.empty(2**19, np.uint32)

    def of(name: str) -> Contender:
        coder = module.getCodec(name)

        def decode(coded: Words, count: int) -> Words:
            gaps = np.empty(count + 512, np.uint32)  # some of them write whole blocks
            return gaps[: coder.decodeArray(coded, len(coded), gaps, len(gaps))]

        return Contender(
            name,
            prepare=gaps_of,
            encode=lambda gaps: room[: coder.encodeArray(gaps, len(gaps), room, len(room))].copy(),
            decode=decode,
        )

    return [of(name) for name in ("simdfastpfor128", "simdoptpfor", "simdbinarypacking", "streamvbyte")]


def roaring(module: ModuleType) -> list[Contender]:
    """A compressed set of the indices."""
    return [
        Contender(
            "Roaring",
            prepare=lambda words: array("I", (words >> 1).tobytes()),
            encode=lambda indices: module.BitMap(indices).serialize(),
            decode=lambda coded, _: module.BitMap.deserialize(coded).to_array(),
        )
    ]


def zstandard(module: ModuleType) -> list[Contender]:
    """The gaps' first bytes, then their second bytes and so on: it looks for repeated bytes."""

    def planes(words: Words) -> bytes:
        return gaps_of(words).view(np.uint8).reshape(-1, 4).T.tobytes()

    def at(level: int) -> Contender:
        expand = module.ZstdDecompressor()
        return Contender(
            f"zstd {level}",
            prepare=planes,
            encode=module.ZstdCompressor(level=level).compress,
            decode=lambda coded, _: expand.decompress(coded),
        )

    return [at(level) for level in (-1, 3)]


LIBRARIES: Final = {
    "pcodec": pcodec,
    "imagecodecs": libaec,
    "pyfastpfor": fastpfor,
    "pyroaring": roaring,
    "zstandard": zstandard,
}


def libraries() -> tuple[list[Contender], list[str]]:
    """The contenders of the extra `bench`, and the names of those packages that are not installed."""
    found: list[Contender] = []
    missing: list[str] = []
    for name, contenders in LIBRARIES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            missing.append(name)
        else:
            found += contenders(module)
    return found, missing
