"""The kernels of kernels/*.cu on the current CUDA device: residual pass, applying updates and the
mean of a dense round, the digest of the weights.

Each gives, bit for bit, what the host gives: p2psgd.wire.codec, or numpy for a dense round. They are compiled
by NVRTC, and kept by CuPy on disk. A method only orders work onto a stream (by default the current one)
and returns; what it was given must live, and stay as it is, until that work is done. Arrays are CuPy's:
one-dimensional, contiguous, aligned to their elements, on this device or where it can reach them (pinned
host memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

import cupy
import numpy as np

from p2psgd.gpu.pass_state import PassGroup, PassState
from p2psgd.wire import codec

# Products and sums are rounded apart. CuPy appends -ftz=true whatever is said here: the kernels keep
# denormals by PTX of their own.
COMPILE_OPTIONS: Final = ("--std=c++17", "--fmad=false")

_DELTA_KERNELS: Final = {
    "float32": "residual_pass_float32",
    "float16": "residual_pass_float16",
    "bfloat16": "residual_pass_bfloat16",
    "uint16": "residual_pass_bfloat16",  # the bits of bfloat16 numbers, where CuPy has no such type
}
_FILES: Final = {  # the kernels of each
    "residual": tuple(dict.fromkeys(_DELTA_KERNELS.values())),
    "apply": ("apply_updates", "add_scaled"),
    "digest": ("digest_weights",),
}
_BLOCK_THREADS: Final = 256
_APPLY_THREAD_WORDS: Final = 4  # as in kernels/apply.cu
_DIGEST_BLOCKS_MAX: Final = 1024  # each of their warps adds to one sum


class Kernels:
    """Kernels of the device that is current when they are made; use them while that one is current.

    All are compiled when it is made: a compiler that fails is known before anything is trained.
    """

    def __init__(self) -> None:
        self._kernels: dict[str, Any] = {}
        for file, names in _FILES.items():
            code = (files("p2psgd.gpu") / "kernels" / f"{file}.cu").read_text(encoding="utf-8")
            module = cupy.RawModule(code=code, options=COMPILE_OPTIONS)
            self._kernels |= {name: module.get_function(name) for name in names}

    def make_state(self, weights: int, ranges_max: int) -> PassState:
        """Return the work space for one pass at a time over up to `weights` weights in up to `ranges_max`
        ranges.
        """
        return PassState(weights, ranges_max)

    def residual_pass(  # noqa: PLR0917 - as codec.residual_pass has them
        self,
        source: Any,
        delta: Any,
        target: Any,
        words: Any,
        state: PassState,
        groups: Sequence[PassGroup],
        *,
        first: int = 0,
        stream: Any = None,
    ) -> None:
        """Accumulate, threshold, emit, subtract ([Strom 2015], lines 4 to 7): all `groups` in one pass.

        source, target float32 (n,); delta (n,) of float32, float16 or bfloat16, the last also by its bits as
        uint16; words uint32 with room for those of all groups; target and words apart from all else. For the
        weights of the ranges as codec.residual_pass does it: target = source + delta less what is emitted;
        outside of the ranges target is left alone. A group's words, of weights `first` + i, begin in `words`
        behind the room of all groups before it; what finds no room stays in the target. `state.read(stream)`
        waits for the pass, says how many words there are, and raises ValueError for a sum that is NaN or
        infinite: target and words are then undefined.
        """
        stream = cupy.cuda.get_current_stream() if stream is None else stream
        weights = _length(source, "source", np.float32)
        kernel = self._delta_kernel(delta)
        for array, name in ((delta, "delta"), (target, "target")):
            length = _length(array, name, np.float32 if name == "target" else None)
            if length != weights:
                raise ValueError(f"source has {weights} weights and {name} {length}")
        if not 0 <= first <= codec.WEIGHTS_MAX - weights:
            raise ValueError(f"{weights} weights from {first} on do not all lie below 2**31")
        room = _length(words, "words", np.uint32)
        state.begin(groups, first, stream, weights=weights, room=room)
        vectors = _aligned(source, 16) and _aligned(target, 16) and _aligned(delta, 4 * delta.itemsize)
        with stream:
            kernel(
                (state.tiles_used,),
                (_BLOCK_THREADS,),
                (
                    source,
                    delta,
                    target,
                    words,
                    state.table,
                    np.uint32(state.ranges),
                    np.uint32(first),
                    np.uint32(vectors),
                    state.tiles,
                    state.ticket,
                    np.uint32(state.first_ticket),
                    np.uint32(state.epoch),
                    state.results,
                    state.totals,
                    state.missed,
                ),
            )
        state.launched()

    def apply(self, weights: Any, words: Any, offsets: Any, amounts: Any, *, stream: Any = None) -> None:
        """Add or subtract amounts[u] at the index of every word in words[offsets[u]:offsets[u + 1]].

        weights float32 (P,); words uint32 (n,) in any order, their indices below P, as those of decoded
        updates are; offsets uint32 (k + 1,), ascending from 0 to n; amounts float32 (k,), positive. Exact,
        in whatever order, where weights and amounts are multiples of a quantum of 2**-30 or more: the device
        adds by atomics, which flush denormals.
        """
        _length(weights, "weights", np.float32)
        count = _length(words, "words", np.uint32)
        updates = _length(amounts, "amounts", np.float32)
        if _length(offsets, "offsets", np.uint32) != updates + 1:
            raise ValueError(f"{updates} amounts need {updates + 1} offsets, they are {len(offsets)}")
        if count == 0 or updates == 0:
            return
        with cupy.cuda.get_current_stream() if stream is None else stream:
            self._kernels["apply_updates"](
                (-(-count // (_BLOCK_THREADS * _APPLY_THREAD_WORDS)),),
                (_BLOCK_THREADS,),
                (
                    weights,
                    np.uint32(len(weights)),
                    words,
                    np.uint32(count),
                    offsets,
                    amounts,
                    np.uint32(updates),
                    np.uint32(_aligned(words, 16)),
                ),
            )

    def add_scaled(self, weights: Any, numbers: Any, factor: float, *, stream: Any = None) -> None:
        """Add numbers * factor to weights, both float32 (P,); each product and each sum is rounded to
        float32, and denormals stay, which CuPy's own arithmetic flushes.
        """
        count = _length(weights, "weights", np.float32)
        if _length(numbers, "numbers", np.float32) != count:
            raise ValueError(f"there are {count} weights and {len(numbers)} numbers")
        with cupy.cuda.get_current_stream() if stream is None else stream:
            self._kernels["add_scaled"](
                (-(-count // _BLOCK_THREADS),),
                (_BLOCK_THREADS,),
                (weights, numbers, np.float32(factor), np.uint32(count)),
            )

    def digest(self, weights: Any, *, quantum_log2: int | None, key: int, stream: Any = None) -> int:
        """Return codec.digest_coordinates of the coordinates of these weights, float32 (P,): of weights /
        quantum, where a weight that is not a multiple of it counts as -2**31, or (None) of their bits. Waits
        for the stream.
        """
        count = _length(weights, "weights", np.float32)
        with cupy.cuda.get_current_stream() if stream is None else stream:
            digest = cupy.zeros(1, np.uint64)
            self._kernels["digest_weights"](
                (min(_DIGEST_BLOCKS_MAX, -(-count // _BLOCK_THREADS)),),
                (_BLOCK_THREADS,),
                (
                    weights,
                    np.uint32(count),
                    np.uint32(-(quantum_log2 or 0)),
                    np.uint32(quantum_log2 is None),
                    np.uint64(key),
                    digest,
                ),
            )
            return int(digest.get()[0])

    def _delta_kernel(self, delta: Any) -> Any:
        name = _DELTA_KERNELS.get(delta.dtype.name)
        if name is None:
            raise TypeError(f"delta must be of {', '.join(codec.DELTA_TYPES)}; it is of {delta.dtype}")
        return self._kernels[name]


def _length(array: Any, name: str, dtype: Any) -> int:
    """Return the address of an array that a kernel can take."""
    if not isinstance(array, cupy.ndarray):
        raise TypeError(f"{name} must be a CuPy array; it is of {type(array).__name__}")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name} must be of {np.dtype(dtype).name}; it is of {array.dtype}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be one-dimensional and contiguous")
    return int(array.size)


def _aligned(array: Any, size: int) -> bool:
    return int(array.data.ptr) % size == 0
