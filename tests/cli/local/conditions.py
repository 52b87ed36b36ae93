"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests import DEADLINE_S


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = DEADLINE_S) -> None:
    """Return as soon as `condition` holds; fail with `what` was waited for after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s in vain for {what}"
        time.sleep(0.02)
