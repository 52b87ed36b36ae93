from __future__ import annotations

from tests.conftest import loop_factory, pytest_collection_modifyitems, small_disk

__all__ = ["loop_factory", "pytest_collection_modifyitems", "small_disk"]
