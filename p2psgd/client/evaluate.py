"""A trainer's part in evaluations: it computes the portions that it is given, and adds up what it is granted.

The daemon answers when there is something to do. While a portion is computed, whether the one before counts
is found out, and the data of the next one is read; so nothing waits for the network between two portions.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import P2psgdError, TrainerError, UsageError
from p2psgd.base.formatting import say
from p2psgd.client.checkpoint import Keeping
from p2psgd.client.data_digest import CountedSamples, DataDigest
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import EvaluateAnswer, EvaluateRequest, check_answer, close_descriptors
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.ipc.segments import map_closure
from p2psgd.wire import codec
from p2psgd.wire.evaluation import check_portions, pack_exponents
from p2psgd.wire.fixed_point import (
    PORTIONS_MAX,
    Exponents,
    Sums,
    borders_of,
    exponents_of,
    read_sums,
    round_numbers,
)

PORTIONS: Final = 64  # of data that has as many samples
CHECKSUM_KEY: Final = 1
FAILED_CHARACTERS_MAX: Final = 200

LossAndGradient = Callable[[NDArray[Any], Any], tuple[Any, Any]]


class Portioned:
    """Data cut into contiguous portions: `data` is a number of samples, also with the digest of these, an
    array or another sequence that slices, or a tuple of these, as long as each other.
    """

    def __init__(self, data: Any, portions: int | None) -> None:
        if isinstance(data, CountedSamples):
            data = data.samples
        self._data = data
        if isinstance(data, int | np.integer):
            self.samples = int(data)
        elif isinstance(data, tuple):
            lengths = {len(part) for part in data}
            if len(lengths) != 1:
                words = f"the parts of data have {sorted(lengths)} samples: give as many of each"
                raise TrainerError(f"evaluate: {words}")
            self.samples = lengths.pop()
        else:
            self.samples = len(data)
        if self.samples < 1:
            raise TrainerError("evaluate: data has no samples")
        self.portions = min(PORTIONS, self.samples) if portions is None else portions
        try:
            check_portions(self.portions)
        except ValueError as error:
            raise TrainerError(f"evaluate: {error}") from None
        if self.portions > self.samples:
            words = f"{self.samples} samples cannot be cut into {self.portions} portions"
            raise TrainerError(f"evaluate: {words}")
        arrays = data if isinstance(data, tuple) else (data,)
        self.is_read = not all(isinstance(each, np.ndarray | int | np.integer) for each in arrays)

    def range(self, portion: int) -> tuple[int, int]:
        """Return the samples of a portion, as a range."""
        return self.samples * portion // self.portions, self.samples * (portion + 1) // self.portions

    def read(self, portion: int) -> Any:
        """Return the data of a portion."""
        begin, end = self.range(portion)
        if isinstance(self._data, int | np.integer):
            return range(begin, end)
        if isinstance(self._data, tuple):
            return tuple(part[begin:end] for part in self._data)
        return self._data[begin:end]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An evaluation that a script wants: `function` of `point`, float (P,), over the data."""

    function: LossAndGradient
    point: NDArray[Any]
    data: Portioned
    digest: int


class Evaluations:
    """The evaluations of one link. `memories`: descriptors of the memory shared with the daemon, which are
    closed.
    """

    def __init__(
        self, client: ControlClient, tensors: Tensors, memories: list[int], keeping: Keeping
    ) -> None:
        sizes = [math.prod(shape) for _, shape in tensors]
        self.number = 0  # of the last one that is complete
        self._client = client
        self._parts, self._totals = map_closure(sum(sizes), memories)
        close_descriptors(memories)
        self._keeping = keeping
        self._borders = borders_of(sizes)
        self._sum = 0
        self._pending: dict[int, Sums | None] = {}  # computed and not added; None: beyond the limits
        self._checked = False  # that the closure is deterministic
        self._reader: ThreadPoolExecutor | None = None
        self._read_ahead: tuple[int, Future[Any]] | None = None
        self._data_digest = DataDigest()
        self._replayed = 0  # evaluations, from the first on, whose results were there

    def run(
        self,
        function: LossAndGradient,
        point: Any,
        data: Any,
        portions: int | None,
        *,
        stopping: Callable[[], bool],
    ) -> tuple[float, NDArray[np.float64]]:
        """Return loss and gradient, float64 (P,), of all data at this point, the same on all members.
        SystemExit once `stopping`.
        """
        self._end_reading()  # of an evaluation that has not come to its end
        flat = self._flatten(point)
        cut = Portioned(data, portions)
        job = Job(function, flat, cut, digest_point(flat, self._data_digest.of(data)))
        cause: Exception | None = None
        self._sum = (
            0  # of no sum: a call before this one may have ended between an answer and the next request
        )
        request = self._ask(job)
        replays = self._replayed == self.number
        while True:
            answer = self._exchange(request)
            self._follow(answer)
            if answer.error:
                raise TrainerError(answer.error) from cause
            if answer.done:
                self.number += 1
                self._replayed += replays
                self._end_reading()  # the script may read its data next
                limits = np.frombuffer(answer.limits, "<i2").astype(np.int16)
                return read_sums(self._totals, limits, self._borders, cut.portions)
            self._keeping.give_if_asked()
            if stopping():
                with contextlib.suppress(P2psgdError):
                    self._keeping.give_unasked()
                raise SystemExit(0)  # what follows in the script needs a result
            added = b"".join(portion.to_bytes(2, "little") for portion in answer.add)
            if answer.compute < 0:
                request = self._ask(job, added=added)
                continue
            if replays:
                replays = False
                self._say_what_was_replayed()
            try:
                request = self._compute(job, answer, added)
            except NotDeterministic:
                raise
            except Exception as error:
                cause = error
                begin, end = cut.range(answer.compute)
                what = str(error) if isinstance(error, WrongResult) else f"{type(error).__name__}: {error}"
                words = f"samples {begin} to {end - 1}: {what}"[:FAILED_CHARACTERS_MAX]
                request = self._ask(job, added=added, computed=answer.compute, failed=words)

    def close(self) -> None:
        """End the thread that reads ahead, and say so if all results were there before this trainer."""
        if self._replayed == self.number:
            self._say_what_was_replayed()
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    def _say_what_was_replayed(self) -> None:
        """Say which results are those of an earlier script of this run, if there are any: of this one, as
        after a restart, or of one that was changed since.
        """
        if self._replayed:
            which = "evaluation 1 is" if self._replayed == 1 else f"evaluations 1 to {self._replayed} are"
            say(
                f"{which} from the log of the run, and not computed anew, since other nodes were first or"
                " this script was started again; if it or what it reads has changed since, stop all nodes and"
                " start them again"
            )

    def _flatten(self, point: Any) -> NDArray[Any]:
        array = np.asarray(point)
        weights = int(self._borders[-1]) - 1
        if array.dtype not in (np.float32, np.float64) or array.size != weights:
            raise TrainerError(
                f"evaluate: the point is {array.dtype} {array.shape}; it must hold {weights} numbers, float32"
                " or float64"
            )
        flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1).view()
        flat.flags.writeable = False
        return flat

    def _ask(self, job: Job, **fields: Any) -> EvaluateRequest:
        return EvaluateRequest(
            evaluation=self.number + 1,
            digest=job.digest,
            portions=job.data.portions,
            sum=self._sum,
            **fields,
        )

    def _exchange(self, request: EvaluateRequest) -> EvaluateAnswer:
        try:
            fields, descriptors = self._client.exchange(request)
        except UsageError as error:
            raise TrainerError(str(error)) from None
        close_descriptors(descriptors)
        return check_answer(EvaluateAnswer, fields)

    def _follow(self, answer: EvaluateAnswer) -> None:
        """Add to the sum, or begin another."""
        if answer.sum != self._sum:
            self._sum = answer.sum
            self._pending.clear()
            self._parts[:] = 0
        for portion in answer.drop:
            self._pending.pop(portion, None)
        for portion in answer.add:
            numbers = self._pending.pop(portion, None)
            if numbers is not None:
                self._parts += numbers

    def _compute(self, job: Job, answer: EvaluateAnswer, added: bytes) -> EvaluateRequest:
        cut = job.data
        portion = answer.compute
        part = self._read(cut, portion)
        if cut.is_read and answer.prefetch >= 0:
            self._begin_reading(cut, answer.prefetch)
        loss, gradient = self._call(job, part)
        if not self._checked:
            again = self._call(job, part)
            if again[0] != loss or again[1].tobytes() != gradient.tobytes():
                raise NotDeterministic(
                    f"portion {portion} gave two results at one point: loss and gradient must depend on the"
                    " point and the samples alone, so draw random numbers by the sample, or none"
                )
            self._checked = True
        exponents = exponents_of(loss, gradient, self._borders)
        limits: Exponents = np.frombuffer(answer.limits, "<i2").astype(np.int16)
        numbers, checksum = None, 0
        if (exponents <= limits).all():
            numbers = round_numbers(loss, gradient, limits, self._borders, cut.portions)
            checksum = codec.digest_coordinates(numbers.view(np.int32), CHECKSUM_KEY)
        self._pending[portion] = numbers
        return self._ask(
            job,
            added=added,
            computed=portion,
            checksum=checksum,
            exponents=pack_exponents(exponents),
        )

    @staticmethod
    def _call(job: Job, part: Any) -> tuple[float, NDArray[np.float64]]:
        point = job.point
        result = job.function(point, part)
        if not isinstance(result, Sequence) or len(result) != 2:
            raise WrongResult(f"the function returned {type(result).__name__}, not a loss and a gradient")
        loss = np.asarray(result[0])
        gradient = np.asarray(result[1])
        if loss.size != 1 or loss.dtype.kind not in "fiu":
            raise WrongResult(f"the loss is {loss.dtype} {loss.shape}, not one number")
        if gradient.size != point.size or gradient.dtype.kind != "f":
            raise WrongResult(
                f"the gradient is {gradient.dtype} {gradient.shape}; it must hold {point.size} floats, as the"
                " point does"
            )
        flat = np.ascontiguousarray(gradient, np.float64).reshape(-1)
        value = float(loss.reshape(-1)[0])
        if not math.isfinite(value):
            raise WrongResult(f"the loss is {value}, not finite")
        if not np.isfinite(flat).all():
            place = int(np.argmin(np.isfinite(flat)))
            raise WrongResult(f"number {place} of the gradient is {flat[place]}, not finite")
        return value, flat

    def _read(self, cut: Portioned, portion: int) -> Any:
        ahead = self._read_ahead
        self._end_reading()
        return ahead[1].result() if ahead is not None and ahead[0] == portion else cut.read(portion)

    def _end_reading(self) -> None:
        """Wait for what is read ahead, wanted or not: a sequence need not bear two reads at once."""
        if self._read_ahead is not None:
            wait([self._read_ahead[1]])
            self._read_ahead = None

    def _begin_reading(self, cut: Portioned, portion: int) -> None:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="p2psgd-portions")
        self._read_ahead = portion, self._reader.submit(cut.read, portion)


class WrongResult(TrainerError):
    """A closure returned something else than a loss and a gradient."""


class NotDeterministic(TrainerError):
    """A closure gave two results for one portion at one point."""


def digest_point(point: NDArray[Any], data: bytes) -> int:
    """Return the digest of all that members must agree on: the numbers of the point, their type, and the
    digest of the data.
    """
    numbers = codec.digest_coordinates(point.view(np.int32), CHECKSUM_KEY)
    words = f"{numbers} {point.dtype.str} {data.hex()}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")


assert PORTIONS <= PORTIONS_MAX
