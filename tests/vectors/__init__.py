"""The golden vectors as Python values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PayloadVector:
    """Words (`index << 1 | negative`), their payload, its CRC-32C, and their digest for `step` and `key`."""

    name: str
    weights: int
    words: tuple[int, ...]
    encoders_give: bool
    payload: bytes
    crc32c: int
    step: int
    key: int
    digest: int


@dataclass(frozen=True)
class RefusedVector:
    """A payload that no decoder may accept for `count` indices below `weights`."""

    name: str
    count: int
    weights: int
    payload: bytes


def payload_vectors() -> list[PayloadVector]:
    return [
        PayloadVector(
            name=row["name"],
            weights=row["weights"],
            words=tuple(
                index << 1 | (sign == "-") for index, sign in zip(row["indices"], row["signs"], strict=True)
            ),
            encoders_give=row["encoders_give"],
            payload=bytes.fromhex(row["payload"]),
            crc32c=int(row["crc32c"], 16),
            step=row["step"],
            key=int(row["key"], 16),
            digest=int(row["digest"], 16),
        )
        for row in json.loads((FOLDER / "payloads.json").read_text())
    ]


def refused_vectors() -> list[RefusedVector]:
    return [
        RefusedVector(row["name"], row["count"], row["weights"], bytes.fromhex(row["payload"]))
        for row in json.loads((FOLDER / "refused.json").read_text())
    ]
