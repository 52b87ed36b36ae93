"""Makes the golden vectors in this folder with the Python reference: `python -m tests.vectors.make`.

For whoever writes a codec, in whatever language: `payloads.json` holds words and their payload, its checksum,
and the digest with a step and a key; where `encoders_give` is false, the payload is only for decoders.
`refused.json` holds payloads that a decoder must refuse.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.wire import reference

FOLDER = Path(__file__).parent
P_MAX = 2**31


def words_of(indices: list[int], chance: random.Random) -> list[int]:
    return [index << 1 | chance.getrandbits(1) for index in sorted(indices)]


def clustered(chance: random.Random, weights: int, count: int) -> list[int]:
    """Indices that sit in a few dense stretches, as in layers of different activity."""
    indices: set[int] = set()
    while len(indices) < count:
        centre = chance.randrange(weights)
        for _ in range(chance.randrange(1, 200)):
            indices.add(min(weights - 1, max(0, int(chance.gauss(centre, 300)))))
    return sorted(indices)[:count]


def word_lists() -> dict[str, tuple[int, list[int]]]:
    """name -> (weights, words)"""
    chance = random.Random(2015)
    return {
        "the worked example": (30, [2 << 1, 3 << 1 | 1, 17 << 1, 29 << 1]),
        "index 0 of one weight, plus": (1, [0]),
        "index 0 of one weight, minus": (1, [1]),
        "last index of 2**31": (P_MAX, [(P_MAX - 1) << 1 | 1]),
        "first and last index of 2**31": (P_MAX, [0, (P_MAX - 1) << 1]),
        "seven dense": (100, words_of(list(range(40, 47)), chance)),
        "eight dense": (100, words_of(list(range(92, 100)), chance)),
        "nine dense from 0": (100, words_of(list(range(9)), chance)),
        "511 indices": (14_600_000, words_of(chance.sample(range(14_600_000), 511), chance)),
        "512 indices": (14_600_000, words_of(chance.sample(range(14_600_000), 512), chance)),
        "513 indices": (14_600_000, words_of(chance.sample(range(14_600_000), 513), chance)),
        "1024 dense, all minus": (1024, [index << 1 | 1 for index in range(1024)]),
        "dense runs with holes": (6000, words_of([i for i in range(6000) if i % 100 < 17], chance)),
        "dense, then one far away": (P_MAX, words_of([*range(600), P_MAX - 5], chance)),
        "huge gaps": (P_MAX, words_of(chance.sample(range(P_MAX), 40), chance)),
        "huge gaps over two blocks": (P_MAX, words_of(chance.sample(range(P_MAX), 520), chance)),
        "clustered": (14_600_000, words_of(clustered(chance, 14_600_000, 1500), chance)),
        "one in 850": (850 * 2000, words_of(chance.sample(range(850 * 2000), 2000), chance)),
    }


def remainders(parameter: int, *, count: int, last_gap: int | None = None) -> bytes:
    """A block of gaps, each as long as it can be without a quotient, or the last as given."""
    longest = 2**parameter - 1
    gaps = [longest] * (count - 1) + [longest if last_gap is None else last_gap]
    return reference.encode_block(gaps, [0] * count, parameter)


def foreign_payloads() -> dict[str, tuple[int, list[int], list[int]]]:
    """name -> (weights, words, parameters): valid, but with parameters that our encoder would not choose."""
    chance = random.Random(24)
    return {
        "parameter 0, one long quotient": (100_000, [70_000 << 1 | 1], [0]),
        "parameter 24 for dense indices": (100, words_of(list(range(30, 41)), chance), [24]),
        "parameters 3 and 9 for one in 850": (
            850 * 600,
            words_of(chance.sample(range(850 * 600), 600), chance),
            [3, 9],
        ),
    }


def payload_vectors() -> list[dict[str, Any]]:
    chance = random.Random(846)
    vectors = []
    ours = [(name, weights, words, None) for name, (weights, words) in word_lists().items()]
    foreign = [(name, *rest) for name, rest in foreign_payloads().items()]
    for name, weights, words, parameters in [*ours, *foreign]:
        payload = reference.encode(words, parameters=parameters)
        key, step = chance.getrandbits(64), chance.choice([1, 32, 2**20])
        vectors.append(
            {
                "name": name,
                "weights": weights,
                "indices": [word >> 1 for word in words],
                "signs": "".join("+-"[word & 1] for word in words),
                "encoders_give": parameters is None,
                "payload": payload.hex(),
                "crc32c": f"{reference.crc32c(payload):08x}",
                "step": step,
                "key": f"{key:016x}",
                "digest": f"{reference.digest_words(words, step, key):016x}",
            }
        )
    return vectors


def refused_vectors() -> list[dict[str, Any]]:
    """Each is one fault away from a payload that is right."""
    dense = [index << 1 for index in range(9)]
    whole = reference.encode(dense)  # header, two groups of one byte, nine ones: 00 00 00 ff 01
    cases = [
        ("no bytes at all", 1, 100, b""),
        ("a header alone", 1, 100, b"\x00"),
        ("values cut off", 9, 100, whole[:2]),
        ("quotients missing", 9, 100, whole[:3]),
        ("quotients cut off", 9, 100, whole[:4]),
        ("a byte too many", 9, 100, whole + b"\x00"),
        ("parameter 25", 1, 100, bytes([25]) + bytes(26) + b"\x01"),
        ("bit 5 of a header set", 9, 100, b"\x20" + whole[1:]),
        ("bit 7 of a header set", 9, 100, b"\x80" + whole[1:]),
        ("padding value not zero", 9, 100, whole[:2] + b"\x80" + whole[3:]),
        ("a one in the padding of the quotients", 9, 100, whole[:-1] + b"\x03"),
        ("an index equal to weights", 2, 9, reference.encode([0, 9 << 1])),
        ("an index of 2**31", 1, P_MAX, reference.encode([P_MAX << 1])),
        ("an index far beyond 2**32", 2, P_MAX, reference.encode([0, 2**33 << 1])),
        ("remainders that add up beyond 2**32", 512, P_MAX, remainders(24, count=512)),
        ("quotients that wrap around 2**32", 1, P_MAX, reference.encode_block([2**32], [0], 21)),
        ("remainders that wrap around 2**32", 257, P_MAX, remainders(24, count=257)),
        (
            "remainders of parameter 21, one index too far",
            512,
            2**30,
            remainders(21, count=512, last_gap=2**21),
        ),
        ("no indices", 0, 100, b""),
        ("more indices than weights", 9, 8, whole),
    ]
    return [
        {"name": name, "count": count, "weights": weights, "payload": payload.hex()}
        for name, count, weights, payload in cases
    ]


def files() -> dict[str, str]:
    """File name -> content, one vector a line."""
    tables = {"payloads.json": payload_vectors(), "refused.json": refused_vectors()}
    return {
        name: "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n" for name, rows in tables.items()
    }


if __name__ == "__main__":
    for file_name, content in files().items():
        (FOLDER / file_name).write_text(content)
