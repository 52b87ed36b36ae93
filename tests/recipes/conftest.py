from __future__ import annotations

from tests.client.conftest import alone, daemon, link, link_options, loop_factory, pair, start_daemon

__all__ = ["alone", "daemon", "link", "link_options", "loop_factory", "pair", "start_daemon"]  # fixtures
