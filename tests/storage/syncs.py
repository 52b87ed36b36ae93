"""Which directories were synchronised, and what was in them then: what a power cut would leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Syncs:
    """Since this object was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: list[tuple[Path, set[str]]] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if place.is_dir():
            self._found.append((place, set(os.listdir(place))))
        self._fsync(descriptor)

    def held(self, folder: Path) -> set[str]:
        """What was in it when it was synchronised last; nothing if it was not."""
        return next((names for place, names in reversed(self._found) if place == folder), set())
