"""More settings of a test, which `make test-wide` runs before a release and `make test-all` does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def widely(kept: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return the values of a parameter; with `others` a test is run by `make test-wide` alone."""
    return [*kept, *(pytest.param(*_values(each), marks=pytest.mark.wide) for each in others)]


def _values(each: Any) -> tuple[Any, ...]:
    return each if isinstance(each, tuple) else (each,)
