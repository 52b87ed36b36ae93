"""The golden vectors as Python values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class MessageVector:
    """The name of a type of frame, fields of such a message, tables packed, and its frame."""

    name: str
    type_name: str
    fields: dict[str, int | str | bytes]
    frame: bytes


@dataclass(frozen=True)
class RefusedMessageVector:
    """A body that no receiver may accept as a message of that type."""

    name: str
    type_name: str
    body: bytes


@dataclass(frozen=True)
class OwnersVector:
    """A body of mode `owners`: numbers of its header, rows of its cover or table, and words."""

    name: str
    type_name: str
    weights: int
    numbers: dict[str, int]
    rows: tuple[tuple[int, ...], ...]
    words: tuple[int, ...]
    body: bytes


@dataclass(frozen=True)
class RefusedOwnersVector:
    """A body that no receiver may accept as a frame of that type; `code` is the name of its code."""

    name: str
    type_name: str
    code: str
    weights: int
    body: bytes


def payload_vectors() -> list[PayloadVector]:
    return [
        PayloadVector(
            name=row["name"],
            weights=row["weights"],
            words=_words(row),
            encoders_give=row["encoders_give"],
            payload=bytes.fromhex(row["payload"]),
            crc32c=int(row["crc32c"], 16),
            step=row["magnitude"],
            key=int(row["key"], 16),
            digest=int(row["digest"], 16),
        )
        for row in json.loads((FOLDER / "payloads.json").read_text())
    ]


def _words(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(index << 1 | (sign == "-") for index, sign in zip(row["indices"], row["signs"], strict=True))


def refused_vectors() -> list[RefusedVector]:
    return [
        RefusedVector(row["name"], row["count"], row["weights"], bytes.fromhex(row["payload"]))
        for row in json.loads((FOLDER / "refused.json").read_text())
    ]


def message_vectors() -> list[MessageVector]:
    return [
        MessageVector(
            name=row["name"],
            type_name=row["type"],
            fields={key: _untyped(value) for key, value in row["fields"].items()},
            frame=bytes.fromhex(row["frame"]),
        )
        for row in json.loads((FOLDER / "messages.json").read_text())
    ]


def _untyped(value: dict[str, Any]) -> int | str | bytes:
    match value:
        case {"integer": str(digits)}:
            return int(digits)
        case {"bin": str(digits)}:
            return bytes.fromhex(digits)
        case {"rows": list(rows)}:
            return b"".join(int(column).to_bytes(8, "little") for row in rows for column in row)
        case {"boolean": bool(plain)} | {"str": str(plain)}:
            return plain
        case _:
            pass
    raise AssertionError(value)


def refused_message_vectors() -> list[RefusedMessageVector]:
    return [
        RefusedMessageVector(row["name"], row["type"], bytes.fromhex(row["body"]))
        for row in json.loads((FOLDER / "refused_messages.json").read_text())
    ]


def owners_vectors() -> list[OwnersVector]:
    return [
        OwnersVector(
            name=row["name"],
            type_name=row["type"],
            weights=row["weights"],
            numbers={key: int(digits) for key, digits in row["numbers"].items()},
            rows=tuple(tuple(map(int, each)) for each in row["rows"]),
            words=_words(row),
            body=bytes.fromhex(row["body"]),
        )
        for row in json.loads((FOLDER / "owners.json").read_text())
    ]


def refused_owners_vectors() -> list[RefusedOwnersVector]:
    return [
        RefusedOwnersVector(row["name"], row["type"], row["code"], row["weights"], bytes.fromhex(row["body"]))
        for row in json.loads((FOLDER / "refused_owners.json").read_text())
    ]
