from __future__ import annotations

import pytest

from p2psgd.core.ring import reduce


@pytest.fixture(autouse=True)
def _small_pieces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the large ones of a real ring are."""
    monkeypatch.setattr(reduce, "CHECKED_NUMBERS_MIN", 1)
