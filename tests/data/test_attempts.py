"""Work that may hang, in threads for which nobody waits."""

from __future__ import annotations

import threading
import time

import pytest

from p2psgd.base.errors import StoreError
from p2psgd.data.store import Attempts, Moved, RetryPolicy, Unavailable
from tests import DEADLINE_S

SOON = RetryPolicy(pauses_s=(0.01,), stall_s=0.05)
LATER = RetryPolicy(pauses_s=(0.01,), stall_s=0.5)  # than a thread of a busy machine gets its turn


def test_what_only_computes_takes_as_long_as_it_takes() -> None:
    begun = []

    def work(moved: Moved) -> str:
        begun.append(1)
        moved(whole=True)
        time.sleep(2 * LATER.stall_s)
        return "it"

    attempts = Attempts(work, "a file", "here", LATER)
    while not attempts.wait(0.01):
        pass
    assert attempts.result() == "it"
    assert len(begun) == 1


def test_what_is_given_up_ends_with_the_next_piece_and_is_not_tried_again() -> None:
    ended = threading.Event()

    def work(moved: Moved) -> None:
        try:
            while True:
                time.sleep(0.005)
                moved()
        except Unavailable:
            ended.set()
            raise

    attempts = Attempts(work, "a file", "here", LATER)
    assert not attempts.wait(2 * LATER.stall_s), "it moves"
    attempts.give_up()
    assert ended.wait(DEADLINE_S)
    assert attempts._attempt == 1
    with pytest.raises(StoreError, match="the data store here was not waited for to give a file"):
        attempts.result()


def test_a_store_that_hangs_for_ever_does_not_gather_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.data.store.THREADS_MAX", 2)
    go_on = threading.Event()
    attempts = Attempts(lambda moved: go_on.wait(60), "a file", "here", SOON)
    while not attempts.wait(0.01):
        pass
    with pytest.raises(StoreError, match="in 2 attempts: nothing has come"):
        attempts.result()
    with pytest.raises(StoreError, match="the data store here hangs: 2 attempts to read it have not ended"):
        Attempts(lambda moved: None, "a file", "here", SOON)
    go_on.set()
