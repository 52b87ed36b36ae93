"""Greetings and rejections as other versions of the protocol send them."""

from __future__ import annotations

from typing import Any, Final

OLD_HELLO: Final[dict[str, Any]] = {
    "protocol": 1,
    "node": 7,
    "incarnation": 1,
    "name": "old",
    "run": b"r" * 32,
    "weights": 1000,
    "quantum_log2": -20,
    "mode": "async",
    "label": "",
    "share": "0/2",
}
LATER_HELLO: Final[dict[str, Any]] = {
    **{key: value for key, value in OLD_HELLO.items() if key != "share"},
    "protocol": 4,
    "name": "later",
    "rank": "0/2",
    "region": "north",
    "features": 5,
}
OLD_REJECT: Final[dict[str, Any]] = {"reason": "protocol", "details": "protocol 2 there, 1 here"}
