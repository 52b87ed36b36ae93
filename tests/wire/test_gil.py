"""Every function of the native core whose work can be long lets other threads run meanwhile.

With a switch interval of an hour a thread keeps the GIL until a call gives it up. So a second thread that
wants it gets a turn only inside a native call that releases it: no call needs to last, nothing is timed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from p2psgd.wire import _native, codec

BRIEF = {  # a few operations whatever their arguments: giving up the GIL would cost more than they do
    "indices_max",
    "payload_bytes_max",
    "paths",
    "path",
    "use_path",
    "load_counter",
    "store_counter",
}
WEIGHTS = 2**22
WORDS = (np.arange(2**18) << 5).astype(np.uint32)
PAYLOAD = _native.encode(WORDS, WEIGHTS)
COORDINATES = np.zeros(WEIGHTS, np.int32)
OTHER_COORDINATES = np.zeros(WEIGHTS, np.int32)
FLOATS = np.zeros(WEIGHTS, np.float32)
OTHER_FLOATS = np.zeros(WEIGHTS, np.float32)
ROOM = np.empty(2**18, np.uint32)

LONG: dict[str, Callable[[], object]] = {
    "encode": lambda: _native.encode(WORDS, WEIGHTS),
    "decode": lambda: _native.decode(PAYLOAD, WEIGHTS, ROOM),
    "measure": lambda: _native.measure(PAYLOAD, WEIGHTS, len(WORDS)),
    "residual_pass": lambda: _native.residual_pass(
        FLOATS, FLOATS, OTHER_FLOATS, ROOM, _native.Precision.FLOAT32, 1.0, 0
    ),
    "apply_coordinates": lambda: _native.apply_coordinates(COORDINATES, WORDS, 1),
    "apply_weights": lambda: _native.apply_weights(FLOATS, WORDS, 0.5),
    "apply_coordinates_together": lambda: _native.apply_coordinates_together(COORDINATES, [(WORDS, 1)]),
    "apply_weights_together": lambda: _native.apply_weights_together(FLOATS, [(WORDS, 0.5)]),
    "digest_words": lambda: _native.digest_words(WORDS, 1, 1),
    "digest_coordinates": lambda: _native.digest_coordinates(COORDINATES, 1, 0),
    "crc32c": lambda: _native.crc32c(PAYLOAD, 0),
    "add_numbers": lambda: _native.add_numbers(FLOATS.data.cast("B"), FLOATS, OTHER_FLOATS),
    "check_numbers": lambda: _native.check_numbers(FLOATS),
    "copy_numbers": lambda: _native.copy_numbers(FLOATS.data.cast("B"), OTHER_FLOATS),
    "move_weights": lambda: _native.move_weights(COORDINATES, FLOATS, 0.5, OTHER_COORDINATES, 1, 0),
}


class Turns:
    """How many turns the second thread has had; between two of them it waits for the GIL, hardly for time."""

    def __init__(self) -> None:
        self.count = 0
        self.over = False

    def take(self) -> None:
        while not self.over:
            self.count += 1
            time.sleep(1e-4)


@pytest.fixture
def turns() -> Iterator[Turns]:
    """A second thread beside the test's, which keeps the GIL until a call releases it."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this Python has no GIL")
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    turns = Turns()
    thread = threading.Thread(target=turns.take)
    try:
        thread.start()
        yield turns
    finally:
        sys.setswitchinterval(before)
        turns.over = True
        thread.join()


def test_every_function_is_known_here_as_long_or_brief() -> None:
    functions = {name for name in dir(_native) if type(getattr(_native, name)).__name__ == "nb_func"}
    assert functions == BRIEF | set(LONG)


def test_a_call_that_keeps_the_gil_gives_nobody_a_turn(turns: Turns) -> None:
    """The method itself: were it to see turns here, it would prove nothing below."""
    counters = np.zeros(1, np.uint64)
    before, begin = turns.count, time.monotonic()
    while time.monotonic() < begin + 0.02:
        codec.load_counter(counters, 0)
    assert turns.count == before


@pytest.mark.parametrize("name", LONG)
def test_a_long_call_gives_another_thread_a_turn(name: str, turns: Turns) -> None:
    call, before, begin = LONG[name], turns.count, time.monotonic()
    while turns.count == before:
        call()
        assert time.monotonic() < begin + 60, f"{name} has kept the GIL for a minute"
