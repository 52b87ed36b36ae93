"""The daemon's side of one run's trainers: what is kept while they come and go.

The residual outlives every trainer, and so does the count of mini-batches, which also says which half of the
residual is current (publication.py); everything else is an `Attachment`, made for one trainer and thrown away
with it. A trainer that keeps its residual elsewhere leaves a copy of it, perhaps of some mini-batches ago.
Only one trainer is attached at a time. While none is, the residual stands still and can be lent as
it is; the next trainer then gets a copy. What a trainer has left is looked through before the next one gets
it, slice by slice (finite_residual.py). In a dense ring there is no residual: its segment is never touched
and takes no memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from p2psgd.ipc import layout
from p2psgd.ipc.attachment import Attachment
from p2psgd.ipc.finite_residual import CHECKED_WEIGHTS, make_finite
from p2psgd.ipc.host import Given
from p2psgd.ipc.publication import half_after
from p2psgd.ipc.ring import entry_bytes
from p2psgd.ipc.segments import Access, create_segment, map_segment
from p2psgd.wire.mode import ASYNC, Mode

TAKE_ENTRIES = 64  # taken from the outbox in one turn of the loop,
TAKE_INDICES = 2**18  # and at most about this many indices: a millisecond or two of decoding and applying


class TrainerPort:
    """Segments, deliver and take for the trainers of one run of `weights` weights.

    `inbox_bytes` and `outbox_bytes` are powers of two that hold at least one of the longest entries; None:
    the usual size. The first trainer goes on after `mini_batches` with `residual`, float32 (P,), or zeros,
    which is `residual_age` mini-batches behind.
    """

    def __init__(
        self,
        weights: int,
        *,
        mode: Mode = ASYNC,
        inbox_bytes: int | None = None,
        outbox_bytes: int | None = None,
        residual: NDArray[np.float32] | None = None,
        mini_batches: int = 0,
        residual_age: int = 0,
    ) -> None:
        self.weights = weights
        self.mode = mode
        self.inbox_bytes = inbox_bytes or layout.inbox_bytes(weights)
        self.outbox_bytes = outbox_bytes or layout.outbox_bytes(weights, mode)
        assert self.inbox_bytes >= entry_bytes(layout.inbox_entry_bytes_max(weights)), inbox_bytes
        assert self.outbox_bytes >= layout.outbox_bytes_min(weights, mode), outbox_bytes
        self.generation = 0
        self.reloads = 0
        self.attachment: Attachment | None = None
        self._mini_batches = mini_batches
        self._stopping = False
        self._lent = False
        self.residual_age = residual_age  # mini-batches that it is behind, as of the last trainer's end
        self.unfinite = 0  # weights that check_residual has set to zero, until somebody sets this to 0
        self._checked = weights if residual is None else 0  # so many of the residual's weights are finite
        self._make_residual(residual)

    @property
    def mini_batches(self) -> int:
        """Mini-batches that this node's trainers have published, over all their lives."""
        return self.attachment.progress() if self.attachment else self._mini_batches

    def check_residual(self) -> bool:
        """Look through a slice of the residual that the next trainer gets, and set to zero what of it is NaN
        or infinite; True once the whole of it is finite.
        """
        assert self.attachment is None, self.generation
        begin, end = self._checked, min(self._checked + CHECKED_WEIGHTS, self.weights)
        if not np.isfinite(self._parts[self._half, begin:end]).all():
            if self._lent:
                self._renew_residual()
            parts = self._map_parts(self._residual, Access.WRITE)
            self.unfinite += make_finite(parts[self._half, begin:end])
        self._checked = end
        return end == self.weights

    @contextlib.contextmanager
    def attach(self) -> Iterator[list[int]]:
        """Make the segments of a new trainer and yield their descriptors; undone if the with block raises.

        They are [residual, inbox, outbox, counters, wake_trainer, wake_daemon] and may be used inside the
        block.
        """
        assert self.attachment is None, self.generation
        assert self._checked == self.weights, "check_residual() comes first"
        if self._lent or self._half != half_after(self._mini_batches):
            self._renew_residual()
        attachment = Attachment(
            weights=self.weights,
            mode=self.mode,
            generation=self.generation + 1,
            inbox_bytes=self.inbox_bytes,
            outbox_bytes=self.outbox_bytes,
            mini_batches=self._mini_batches,
            stopping=self._stopping,
        )
        try:
            yield [self._residual, *attachment.descriptors]
            attachment.close_memories()
        except BaseException:
            attachment.close()
            raise
        self.generation += 1
        self.attachment = attachment

    def deliver(self, body: bytes | bytearray) -> None:
        """Hand a peer's update to the trainer, if one is attached; TrainerError if it wrote rubbish."""
        if self.attachment:
            self.attachment.deliver(body)

    def take(self) -> list[Given]:
        """The next few things that the trainer gives; TrainerError if rubbish comes next."""
        return self.attachment.take(TAKE_ENTRIES, TAKE_INDICES) if self.attachment else []

    def take_all(self, end: int | None = None) -> Iterator[list[Given]]:
        """All that the trainer has published by now, or up to the position `end`, in turns as `take` gives
        them.
        """
        if self.attachment:
            published = self.attachment.published_bytes()
            end = published if end is None else min(end, published)
            while self.attachment.taken_bytes < end:
                yield self.attachment.take(TAKE_ENTRIES, TAKE_INDICES, end)

    def lend_residual(self) -> NDArray[np.float32] | None:
        """The residual, float32 (P,), read-only, while no trainer is attached; it will never change. None:
        there is none in this mode.
        """
        assert self.attachment is None, self.generation
        if self.mode.dense:
            return None
        self._lent = True
        half: NDArray[np.float32] = self._parts[self._half]
        return half

    @property
    def kept_residual(self) -> NDArray[np.float32] | None:
        """The trainer's copy of its residual, float32 (P,), read-only, as it gave it with its last state;
        None in a dense ring.
        """
        return None if self.mode.dense else self._parts[layout.RESIDUAL_PARTS - 1]

    def age_after(self, mini_batches: int) -> int:
        """How many mini-batches behind the attached trainer's residual after `mini_batches` was: as many as
        when it came, until it has published.
        """
        return self.residual_age if mini_batches == self._mini_batches else 0

    def reload(self) -> int:
        """The attached trainer is about to get the replica as it is now: where it reads its inbox on."""
        assert self.attachment is not None
        self.reloads += 1
        return self.attachment.reload()

    def finish(self) -> None:
        """Ask the trainer, or the next one if it has just crashed, to stop after its mini-batch."""
        self._stopping = True
        if self.attachment:
            self.attachment.request_stop()

    def detach(self, *, finished: bool) -> None:
        """The trainer is gone, and what it had published was taken: keep its count and drop its memory."""
        assert self.attachment is not None
        progress = self.attachment.progress()
        copied = self.attachment.residual_copy()
        at, self._half = copied or (progress, half_after(progress))
        self.residual_age = max(0, progress - at) + self.age_after(at)
        self._mini_batches = progress
        if not self.mode.dense:
            self._checked = 0
        if finished:
            self._stopping = False
        self.attachment.close()
        self.attachment = None

    def _make_residual(self, residual: NDArray[np.float32] | None) -> None:
        """Make a new segment whose current half is this residual; if that fails, nothing has changed."""
        half = half_after(self._mini_batches)
        descriptor = create_segment("p2psgd-residual", 4 * layout.RESIDUAL_PARTS * self.weights)
        try:
            if residual is not None:
                self._map_parts(descriptor, Access.WRITE)[half] = residual
            parts = self._map_parts(descriptor, Access.READ)
        except BaseException:
            os.close(descriptor)
            raise
        self._residual, self._parts, self._half, self._lent = descriptor, parts, half, False

    def _renew_residual(self) -> None:
        """Copy the residual to a new segment; the old one stays as it is with whoever has a map of it."""
        old = self._residual
        self._make_residual(self._parts[self._half])
        os.close(old)

    def _map_parts(self, descriptor: int, access: Access) -> NDArray[np.float32]:
        count = layout.RESIDUAL_PARTS * self.weights
        parts = map_segment(descriptor, np.float32, count, access)
        return parts.reshape(layout.RESIDUAL_PARTS, self.weights)

    def close(self) -> None:
        """Close all descriptors."""
        if self.attachment:
            self.detach(finished=False)
        descriptor, self._residual = self._residual, -1
        if descriptor >= 0:
            os.close(descriptor)
            del self._parts  # a map holds a descriptor of its own
