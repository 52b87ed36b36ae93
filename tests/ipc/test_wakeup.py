from __future__ import annotations

import os
import select

from p2psgd.ipc.ring_buffer import Wakeup


def test_any_number_of_signals_wakes_once_and_nothing_blocks() -> None:
    wakeup = Wakeup()
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    wakeup.clear()
    assert not poll.poll(0)
    wakeup.signal()
    wakeup.signal()
    assert poll.poll(0)
    wakeup.clear()
    assert not poll.poll(0)
    wakeup.close()
    wakeup.close()


def test_a_counter_that_somebody_filled_up_is_awake_already() -> None:
    wakeup = Wakeup()
    os.eventfd_write(wakeup.fileno(), 2**64 - 2)
    wakeup.signal()
    wakeup.clear()
    wakeup.close()
