"""Part `vectors`: SHA-256 of each golden vector file, by its name without its folder, which may move."""

from __future__ import annotations

import hashlib
from typing import Final

from tests.oracle.files import ROOT

PLACES: Final = ("p2psgd", "tests")


def observe() -> dict[str, str]:
    """Return the hash of each JSON file in a folder `vectors`."""
    paths = [path for place in PLACES for path in (ROOT / place).rglob("vectors/*.json")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}
