from __future__ import annotations

import asyncio

import pytest

from tests.ipc.conftest import daemon, start_daemon
from tests.ipc.daemons import LoopFactory

__all__ = ["daemon", "start_daemon"]  # fixtures


@pytest.fixture
def loop_factory() -> LoopFactory:
    """One of the two: what the loops have to do with it is tests/recipes's."""
    return asyncio.new_event_loop
