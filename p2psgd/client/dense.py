"""A trainer's part in the rounds of a dense ring: its contributions, and what becomes of the sums.

The numbers lie in memory shared with the daemon: `contributions` is this trainer's from a round's opening
until it gives its contribution; the sums of a round are read until then. The daemon's replica does the same
to its weights (core), multiply then add in float32, so that both have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.buckets import BucketPlan, Given, Range, clip
from p2psgd.client.compute import Compute, cut
from p2psgd.client.wait import GRACE_S, Waiting
from p2psgd.ipc import layout
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.wire.ring_messages import ARRAY, CHANGES

PIECE_NUMBERS: Final = 1 << 16  # looked at together: 256 KiB stay in the cache
FLOAT16_MAX: Final = 65504.0
OPERATIONS: Final = ("mean", "sum")
NAMES_MAX: Final = 8  # in a sentence; who begins none of a hundred tensors sees what is wrong by so many
ADVICE: Final = ": lower the learning rate or look for the division that made it"


class DenseRounds:
    """Rounds of one link, in a run of `tensors`; `half`: numbers travel as float16."""

    def __init__(
        self,
        memory: TrainerMemory[Given],
        waiting: Waiting,
        compute: Compute,
        tensors: Tensors,
        *,
        half: bool,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self._compute = compute
        self._plan = BucketPlan(tensors)
        self._limit = FLOAT16_MAX if half else float(np.finfo(np.float32).max)
        self._flat = memory.contributions[: self._plan.weights]
        self._contributions = cut(self._flat, tensors)
        self.proposed: Mapping[str, NDArray[np.float32]] = MappingProxyType(
            compute.place_contributions(self._contributions)
        )
        self._applied = 0  # contributions whose rounds are in the weights

    @property
    def begun(self) -> bool:
        """Return whether some tensors of a contribution are begun, and not all of them are given."""
        return bool(self._memory.mark.begun.tensors)

    @property
    def pending(self) -> bool:
        """Return whether a contribution of changes is given whole whose round is not in the weights yet."""
        given = self._memory.mark
        return given.changes and given.contributions > self._applied

    def begin(self, name: str) -> None:
        """Begin a tensor, whose part of `contributions` is whole; TrainerError, with nothing changed, if it
        cannot be.
        """
        given = self._memory.mark
        if name not in self.proposed:
            known = ", ".join(map(repr, self.proposed))
            raise TrainerError(f"there is no tensor {name!r:.100}; the tensors are {known}")
        if name in given.begun.tensors:
            raise TrainerError(f"tensor {name!r} is begun already: end its mini-batch with allreduce_wait()")
        self._compute.fetch_contribution(name)
        self._check(self._contributions[name].reshape(-1), f"proposed[{name!r}]", advice=ADVICE)
        begun, buckets = self._plan.begin(given.begun, name)
        if len(begun.tensors) == len(self.proposed):
            self._give_rest()
        elif buckets:
            count = self._memory.steps + 1
            self._publish(buckets, replace(given, begun=begun), count=count)
        else:
            self._memory.set_mark(replace(given, begun=begun))

    def refuse_to_wait(self) -> NoReturn:
        """Raise TrainerError with the tensors that are not begun yet: their old numbers would be given."""
        begun = self._memory.mark.begun.tensors
        missing = [repr(name) for name in self.proposed if name not in begun]
        more = f" and {len(missing) - NAMES_MAX} more" if len(missing) > NAMES_MAX else ""
        if len(missing) == 1:
            words, name = f"tensor {missing[0]} has", missing[0]
        else:
            words, name = f"tensors {', '.join(missing[:NAMES_MAX])}{more} have", "name"
        raise TrainerError(
            f"{words} not been begun in this round: write link.proposed[{name}] and call"
            f" allreduce_begin({name}) for every tensor before allreduce_wait()"
        )

    def give(self, delta: NDArray[Any], steps: int) -> int:
        """Contribute this delta (P,) as a whole; `steps` mini-batches have made it."""
        if self.begun:
            raise TrainerError("some tensors are begun already: end their mini-batch with allreduce_wait()")
        numbers = self._compute.fetch_delta(delta).astype(np.float32, copy=False)
        for name, (begin, end) in self._plan.ranges.items():
            self._check(numbers[begin:end], f"delta of tensor {name!r}", advice=ADVICE)
        self._flat[:] = numbers
        self._give_rest(steps)
        return self._plan.weights

    def begin_at(self, change: NDArray[np.float32] | None) -> None:
        """Contribute a change (P,) in the host's memory, or zeros, before the first mini-batch."""
        self._flat[:] = 0.0 if change is None else change
        self._check(self._flat, "a change to the first weights")
        given = self._memory.mark
        self._publish(self._plan.rest(given.begun), given.contribute(changes=True), count=0)

    def settle(self) -> None:
        """Note that the weights hold all rounds that are complete."""
        self._applied = self._memory.mark.contributions

    def take(self, add: Callable[[NDArray[np.float32], np.float32], None]) -> int:
        """Complete the round of the last contribution: `add(sums, factor)` it, unless that is done or it was
        an array's; return how many nodes contributed to it.
        """
        if not self.pending:
            return 0
        contributors = self._memory.contributors
        if contributors:
            add(self._memory.round_sums, np.float32(1.0 / contributors))
        self.settle()
        return contributors

    def allreduce(
        self, array: NDArray[np.float32], op: str, name: str, result: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """Sum or mean of an array over all nodes, in `result`, contiguous, or where it lies in shared memory,
        which `check_uncopied` has let pass; the round that it begins with is open. TrainerError if a number
        is not finite, or if the daemon wants the end before it is complete; at all nodes if a sum is beyond
        float16.
        """
        arrays = self._memory.arrays
        numbers = np.ascontiguousarray(array).reshape(-1)
        in_place = numbers.size > 0 and numbers.ctypes.data == arrays.ctypes.data
        if not in_place and np.may_share_memory(numbers, arrays):
            numbers = numbers.copy()
        if numbers.size > arrays.size:  # before the first of several rounds
            self._check(numbers, "the array")
        shape = clip(f"{array.shape}" + (", to be summed" if op == "sum" else ""))
        for start in range(0, max(1, numbers.size), arrays.size):
            piece = numbers[start : start + arrays.size]
            count = max(1, piece.size)  # nothing is given as one zero, so that other shapes are found out
            if not piece.size:
                arrays[0] = 0.0
            if self._limit == FLOAT16_MAX:  # float32 is looked at where it is added
                self._check(piece, "the array")
            if not in_place:
                arrays[: piece.size] = piece
            given = self._memory.mark.contribute(changes=False)
            self._write([_pack(self._memory.steps, ARRAY, (0, count), clip(name), shape)], given)
            if not self._waiting.until_open(grace_s=GRACE_S):
                raise TrainerError("allreduce is not done: the daemon asks this trainer to end")
            self.settle()
            sums = self._memory.round_sums[: piece.size]
            if self._limit == FLOAT16_MAX:
                self._check(sums, "the sum of all nodes' arrays")
            if result is None:
                return sums.reshape(array.shape)
            part = result.reshape(-1)[start : start + piece.size]
            if op == "mean" and self._memory.contributors:
                np.divide(sums, np.float32(self._memory.contributors), out=part)
            else:
                part[:] = sums
        assert result is not None
        return result

    def array(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return memory for `allreduce`, which need not be copied; TrainerError if there is less of it."""
        arrays, count = self._memory.arrays, math.prod(shape)
        if count > arrays.size:
            raise TrainerError(f"array: {count} numbers are wanted, and {arrays.size} have room")
        memory: NDArray[np.float32] = arrays[:count].reshape(shape)
        return memory

    def check_out(self, out: object, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the array for the result; TrainerError if it cannot be it."""
        if (
            not isinstance(out, np.ndarray)
            or (out.dtype, out.shape) != (np.float32, shape)
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise TrainerError(
                f"allreduce: out must be a writable, contiguous array of float32 {shape}; it is {found}"
            )
        return out

    def check_uncopied(self, array: NDArray[np.float32], op: str, out: object) -> None:
        """Raise TrainerError if what becomes of this array cannot stay in shared memory."""
        if op != "sum" or out is not None:
            wish = 'op "mean"' if op != "sum" else "out"
            raise TrainerError(f"allreduce: copy=False gives a sum as it lies, without {wish}")
        if array.size > self._memory.arrays.size:
            raise TrainerError(
                f"allreduce: {array.size} numbers are summed in several rounds, of {self._memory.arrays.size}"
                " at most: copy=False is for those of one"
            )

    def check_array(self, array: object, op: str) -> NDArray[np.float32]:
        """Return the array, as `allreduce` can take it; TrainerError if it cannot."""
        if op not in OPERATIONS:
            raise TrainerError(f"allreduce: op is 'mean' or 'sum', not {op!r:.100}")
        if not isinstance(array, np.ndarray | np.generic) or array.dtype != np.float32:
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TrainerError(f"allreduce takes a numpy array of float32; it is {found}")
        if self.begun:
            raise TrainerError(
                "some tensors are begun already: end their mini-batch with allreduce_wait() before allreduce"
            )
        whole: NDArray[np.float32] = np.asarray(array)
        return whole

    def _check(self, numbers: NDArray[np.float32], what: str, *, advice: str = "") -> None:
        """Raise TrainerError for numbers that no sum can hold."""
        for start in range(0, numbers.size, PIECE_NUMBERS):
            piece = numbers[start : start + PIECE_NUMBERS]
            low, high = float(piece.min()), float(piece.max())  # NaN if any number is
            if not (-self._limit <= low and high <= self._limit):
                place = start + int(np.argmax(~(np.abs(piece) <= self._limit)))
                limit = ", or beyond what float16 holds" if self._limit == FLOAT16_MAX else ""
                raise TrainerError(
                    f"{what} is refused: number {place} is {numbers[place]:g}, not finite{limit}{advice}"
                )

    def _give_rest(self, steps: int = 1) -> None:
        given = self._memory.mark
        count = self._memory.steps + steps
        self._publish(self._plan.rest(given.begun), given.contribute(changes=True), count=count, steps=steps)

    def _publish(self, buckets: Sequence[Range], given: Given, *, count: int, steps: int = 0) -> None:
        entries = [_pack(count, CHANGES, bucket, *self._plan.describe(bucket)) for bucket in buckets]
        self._write(entries, given, steps=steps)

    def _write(self, entries: Sequence[bytes], given: Given, *, steps: int = 0) -> None:
        self._memory.settle()  # an interrupted call may have left entries behind
        self._waiting.until_room(entries)
        self._memory.publish(entries, given, steps=steps)


def _pack(steps: int, kind: int, bucket: Range, name: str, shape: str) -> bytes:
    begin, end = bucket
    words = name.encode()
    return layout.BUCKET_ENTRY.pack(steps, kind, begin, end - begin, len(words)) + words + shape.encode()
