"""Signals as a flag."""

import os
import signal

import pytest

from p2psgd.recipes.main import Interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_flag_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        states = [interruption.wanted]
        os.kill(os.getpid(), number)
        states.append(interruption.wanted)
        signal.raise_signal(signal.SIGTERM)  # it may come twice for one stop
        with pytest.raises(KeyboardInterrupt):  # what the first one waits for may never come
            signal.raise_signal(signal.SIGINT)
    assert states == [False, True]
    assert signal.getsignal(number) is before
