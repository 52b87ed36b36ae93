"""Makes the golden vectors in this folder with the Python reference: `python -m tests.vectors.make`.

For whoever writes a codec, in whatever language: `payloads.json` holds words and their payload, its checksum,
and the digest with a step and a key; where `encoders_give` is false, the payload shows choices that an
encoder must not make, and is only for decoders. `refused.json` holds payloads that a decoder must refuse.
`messages.json` and `refused_messages.json` are the same for control messages, `owners.json` and
`refused_owners.json` for what has a body of its own in mode `owners`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.vectors import messages, owners, refused
from tests.wire import reference
from tests.wire.reference import DENSE, BlockChoice, Choices

FOLDER = Path(__file__).parent
P_MAX = 2**31


def words_of(indices: list[int], chance: random.Random) -> list[int]:
    return [index << 1 | chance.getrandbits(1) for index in sorted(indices)]


def words_in_runs(indices: list[int], chance: random.Random, *, mean: float) -> list[int]:
    """Signs that stay the same for `mean` words on average."""
    words: list[int] = []
    negative = 0
    for index in sorted(indices):
        negative ^= chance.random() < 1 / mean
        words.append(index << 1 | negative)
    return words


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


def sign_word_lists() -> dict[str, tuple[int, list[int]]]:
    """Signs worth coding, and updates of most weights; name -> (weights, words)"""
    chance = random.Random(1994)
    tenth = [index for index in range(0, 1300, 2) if chance.random() < 0.2]
    return {
        "the worked example of coded signs": (
            40,
            [3 << 1, 4 << 1, 6 << 1, 7 << 1, 9 << 1 | 1, 10 << 1 | 1, 30 << 1, 31 << 1, 33 << 1],
        ),
        **{
            f"signs in runs of {mean}": (1300, words_in_runs(tenth, chance, mean=mean))
            for mean in (3, 5, 9, 17, 33)
        },
        "512 of one sign": (20_000, [index << 1 for index in chance.sample(range(20_000), 512)]),
        "513 indices with signs in runs": (
            20_000,
            words_in_runs(chance.sample(range(20_000), 513), chance, mean=30),
        ),
        "a row of plus, a row of minus, far apart": (
            P_MAX,
            [*(index << 1 for index in range(70)), *((2**30 + index) << 1 | 1 for index in range(70))],
        ),
        "the worked example of the dense form": (
            12,
            [index << 1 | (sign == "-") for index, sign in enumerate("+- ++-- +-+-") if sign != " "],
        ),
        "dense: one weight of five": (5, [4 << 1 | 1]),
        "dense: all of five, minus": (5, [index << 1 | 1 for index in range(5)]),
        "dense: all of 242, signs at random": (242, words_of(list(range(242)), chance)),
        "dense: the last byte with four weights": (34, words_of(chance.sample(range(34), 30), chance)),
        "dense: 600 of 800": (800, words_of(chance.sample(range(800), 600), chance)),
        "blocks, as short as the dense form would be": (7, words_of(list(range(7)), chance)),
    }


def foreign_payloads() -> dict[str, tuple[int, list[int], Choices]]:
    """name -> (weights, words, choices): valid, but with choices that our encoder would not make."""
    chance = random.Random(24)
    few = words_of(list(range(30, 41)), chance)
    some = words_of(chance.sample(range(850 * 600), 600), chance)
    fives = words_of(list(range(5, 200, 6)), chance)  # every gap is 5
    row = [index << 1 for index in range(20, 60)]
    return {
        "parameter 0, one long quotient": (100_000, [70_000 << 1 | 1], (BlockChoice(0, 0),)),
        "parameter 24 for dense indices": (100, few, (BlockChoice(24, 0),)),
        "parameters 3 and 9 for one in 850": (850 * 600, some, (BlockChoice(3, 0), BlockChoice(9, 0))),
        "coded signs at random, modes 1 and 4": (850 * 600, some, (BlockChoice(9, 1), BlockChoice(9, 4))),
        "plain signs, all of them plus": (100, row, (BlockChoice(0, 0),)),
        **{f"one run of 39 in mode {m}": (100, row, (BlockChoice(m % 3, m),)) for m in range(1, 8)},
        "coded signs without a near word": (210, fives, (BlockChoice(2, 3),)),
        "coded signs, parameter 24": (100, few, (BlockChoice(24, 7),)),
        "the dense form for one weight of 100": (100, [50 << 1 | 1], DENSE),
        "the dense form for a row": (63, row, DENSE),
    }


def payload_vectors() -> list[dict[str, Any]]:
    chance = random.Random(846)
    vectors = []
    lists = {**word_lists(), **sign_word_lists()}
    ours = [(name, weights, sorted(words), None) for name, (weights, words) in lists.items()]
    foreign = [(name, *rest) for name, rest in foreign_payloads().items()]
    for name, weights, words, choices in [*ours, *foreign]:
        payload = reference.encode(words, weights, choices)
        key, step = chance.getrandbits(64), chance.choice([1, 32, 2**20])
        vectors.append(
            {
                "name": name,
                "weights": weights,
                "indices": [word >> 1 for word in words],
                "signs": "".join("+-"[word & 1] for word in words),
                "encoders_give": choices is None,
                "payload": payload.hex(),
                "crc32c": f"{reference.crc32c(payload):08x}",
                "magnitude": step,
                "key": f"{key:016x}",
                "digest": f"{reference.digest_words(words, step, key):016x}",
            }
        )
    return vectors


def refused_vectors() -> list[dict[str, Any]]:
    return [
        {"name": name, "count": count, "weights": weights, "payload": payload.hex()}
        for name, count, weights, payload in refused.cases()
    ]


def message_vectors() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": kind,
            "fields": {key: typed(value) for key, value in fields.items()},
            "frame": messages.frame_of(kind, fields).hex(),
        }
        for name, kind, fields in messages.cases()
    ]


def typed(value: int | str | bytes | messages.Rows | messages.Places) -> dict[str, Any]:
    """A field in JSON, which knows neither bytes nor integers of 64 bits."""
    match value:
        case bool():
            return {"boolean": value}
        case int():
            return {"integer": str(value)}
        case str():
            return {"str": value}
        case bytes():
            return {"bin": value.hex()}
        case messages.Places():
            return {"bin": value.packed().hex()}
        case messages.Rows():
            return {"rows": [[str(column) for column in row] for row in value.rows]}


def refused_message_vectors() -> list[dict[str, Any]]:
    return [{"name": name, "type": kind, "body": body.hex()} for name, kind, body in messages.refused_cases()]


def owners_vectors() -> list[dict[str, Any]]:
    return [
        {
            "name": case.name,
            "type": case.type_name,
            "weights": case.weights,
            "numbers": {key: str(number) for key, number in case.numbers.items()},
            "rows": [[str(number) for number in row] for row in case.rows],
            "indices": [word >> 1 for word in case.words],
            "signs": "".join("+-"[word & 1] for word in case.words),
            "body": case.body.hex(),
        }
        for case in owners.cases()
    ]


def refused_owners_vectors() -> list[dict[str, Any]]:
    return [
        {"name": name, "type": kind, "code": code, "weights": weights, "body": body.hex()}
        for name, kind, code, weights, body in owners.refused_cases()
    ]


def files() -> dict[str, str]:
    """File name -> content, one vector a line."""
    tables = {
        "payloads.json": payload_vectors(),
        "refused.json": refused_vectors(),
        "messages.json": message_vectors(),
        "refused_messages.json": refused_message_vectors(),
        "owners.json": owners_vectors(),
        "refused_owners.json": refused_owners_vectors(),
    }
    return {
        name: "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n" for name, rows in tables.items()
    }


if __name__ == "__main__":
    for file_name, content in files().items():
        (FOLDER / file_name).write_text(content)
