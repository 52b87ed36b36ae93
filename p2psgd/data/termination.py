"""SIGTERM ends a script by an exception while it goes through shards, so that what it holds is given back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def raised_termination() -> Iterator[None]:
    """Meanwhile SIGTERM raises SystemExit, unless the script has said what it does. The next one kills."""
    if threading.current_thread() is threading.main_thread() and _is(signal.SIG_DFL):
        signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and _is(_end):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is(handler: object) -> bool:
    return signal.getsignal(signal.SIGTERM) is handler


def _end(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(128 + number)
