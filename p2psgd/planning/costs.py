"""What p2psgd's own work costs a processor.

The figures are of one thread of a Xeon of 2024 (AVX2), two of whose processors were shared with other work.
Most are from `python -m tests.bench --large residual step apply daemon`: many in a row, caches warm. That is
right for what binds, since work that has piled up is done in one go. A daemon that is woken for one update
after some milliseconds finds its caches cold and takes up to seven times as long for it, but then it has the
time. Where nothing can pile up the cold figure stands: `send_s` of a trainer after computing, from a paced
node without peers; `pass_on_s` in a ring and `chunk_s`, from the CPU seconds, not the rates, of paced rings
of 4 to 16 nodes (`python -m tests.bench.scaling`); `move_weight_s` is what a dense round of docs/ring.md
takes beyond its bytes. Other processors are off by a factor of their own: where a prediction says that a
processor binds, measure there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one processor."""

    # of a trainer
    pass_weight_s: float = 0.75e-9  # residual pass, for each weight (float32, on the host)
    send_s: float = 1e-3  # one send, whatever its size
    send_index_s: float = 30e-9  # finding, coding and applying an index of its own
    receive_s: float = 40e-6  # one update of a peer, whatever its size
    receive_index_s: float = 9e-9
    # of a daemon
    own_s: float = 150e-6  # its trainer's update: from the outbox to the replica and the log
    own_index_s: float = 14e-9
    feed_s: float = 20e-6  # one more peer to send an update to
    feed_byte_s: float = 0.7e-9
    take_s: float = 40e-6  # a peer's update: from the socket to the replica, the log and the inbox
    take_index_s: float = 11e-9
    pass_on_s: float = 180e-6  # beside that, to be woken for it and send it on, in a ring
    status_s: float = 50e-6  # a STATUS from a peer, and to it
    status_row_s: float = 3e-6  # for each origin in it
    status_pair_s: float = 0.28e-6  # to make one: for each origin and each member that may have confirmed it
    idle_per_s: float = 2e-3  # timers and watching itself, in each second
    # of a dense ring
    sum_byte_s: float = 2e-9  # a byte of a share on its way: received, checked, added, sent
    chunk_s: float = 100e-6  # a RING_CHUNK, whatever its size
    move_weight_s: float = 2e-9  # the new weights of a round, in daemon and trainer


MEASURED: Final = Costs()
