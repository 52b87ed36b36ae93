from __future__ import annotations

import pytest

from p2psgd.core.ring import reduction


@pytest.fixture(autouse=True)
def _small_pieces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the large ones of a real ring are."""
    monkeypatch.setattr(reduction, "CHECKED_NUMBERS_MIN", 1)
