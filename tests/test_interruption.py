from __future__ import annotations

import signal
import time

import pytest

from p2psgd.base import interruption as module
from p2psgd.base.interruption import OF_A_TRAINER, Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_request(number: signal.Signals) -> None:
    with Interruption() as interruption:
        assert not interruption.requested
        signal.raise_signal(number)
        assert interruption.requested


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_ctrl_c_after_it_ends_the_run_and_later_ones_do_not_disturb_that(first: signal.Signals) -> None:
    with Interruption():
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interruption():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_where_no_ctrl_c_comes_a_sigterm_a_while_after_the_first_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption():
            signal.raise_signal(signal.SIGTERM)
            now += module.AGAIN_S / 2
            signal.raise_signal(signal.SIGTERM)  # of the same stop
            now += module.AGAIN_S
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_trainer_leaves_sighup_as_it_is() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with Interruption(OF_A_TRAINER):
        assert signal.getsignal(signal.SIGHUP) is before
