"""The kernels of kernels/*.cu on the current CUDA device: residual pass, applying updates, digest.

Each gives, bit for bit, what its namesake of p2psgd.wire.codec gives. They are compiled by NVRTC when they
are first used, and kept by CuPy on disk. A method only orders work onto a stream (by default the current one)
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

COMPILE_OPTIONS: Final = (
    "--std=c++17",
    "--fmad=false",
)  # denormals stay, products and sums are rounded apart

_DELTA_KERNELS: Final = {
    "float32": "residual_pass_float32",
    "float16": "residual_pass_float16",
    "bfloat16": "residual_pass_bfloat16",
    "uint16": "residual_pass_bfloat16",  # the bits of bfloat16 numbers, where CuPy has no such type
}
_BLOCK_THREADS: Final = 256
_APPLY_THREAD_WORDS: Final = 4  # as in kernels/apply.cu
_DIGEST_BLOCKS_MAX: Final = 1024


class Kernels:
    """Of the device that is current when it is made, and for use while that one is current."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._kernels: dict[str, Any] = {}
        self._digest = cupy.zeros(1, np.uint64)

    def make_state(self, weights: int, ranges_max: int) -> PassState:
        """What passes over up to `weights` weights in up to `ranges_max` ranges need, one at a time."""
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
        state.begin(groups, first, stream)
        if state.weights_end > weights:
            raise ValueError(f"the ranges end at weight {state.weights_end} and there are {weights}")
        if state.words_end > room:
            raise ValueError(f"the groups have room for {state.words_end} words and words for {room}")
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
            self._kernel("apply", "apply_updates")(
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

    def digest(self, weights: Any, *, quantum: float, key: int, start: int = 0, stream: Any = None) -> int:
        """codec.digest_coordinates of weights / quantum, rounded to integers; waits for the stream.

        weights float32 (n,), those of the weights start, start + 1, ...; `quantum` a power of two.
        """
        count = _length(weights, "weights", np.float32)
        with cupy.cuda.get_current_stream() if stream is None else stream:
            self._digest.fill(0)
            if count:
                self._kernel("digest", "digest_weights")(
                    (min(_DIGEST_BLOCKS_MAX, -(-count // _BLOCK_THREADS)),),
                    (_BLOCK_THREADS,),
                    (
                        weights,
                        np.uint32(count),
                        np.float32(1 / quantum),
                        np.uint64(key),
                        np.uint64(start),
                        self._digest,
                    ),
                )
            return int(self._digest.get()[0])

    def _delta_kernel(self, delta: Any) -> Any:
        name = _DELTA_KERNELS.get(delta.dtype.name)
        if name is None:
            raise TypeError(f"delta must be of {', '.join(codec.DELTA_TYPES)}; it is of {delta.dtype}")
        return self._kernel("residual", name)

    def _kernel(self, file: str, name: str) -> Any:
        if name in self._kernels:
            return self._kernels[name]
        if file not in self._modules:
            code = (files("p2psgd.gpu") / "kernels" / f"{file}.cu").read_text(encoding="utf-8")
            self._modules[file] = cupy.RawModule(code=code, options=COMPILE_OPTIONS)
        self._kernels[name] = self._modules[file].get_function(name)
        return self._kernels[name]


def _length(array: Any, name: str, dtype: Any) -> int:
    """Of an array that a kernel can take."""
    if not isinstance(array, cupy.ndarray):
        raise TypeError(f"{name} must be a CuPy array; it is of {type(array).__name__}")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name} must be of {np.dtype(dtype).name}; it is of {array.dtype}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be one-dimensional and contiguous")
    return int(array.size)


def _aligned(array: Any, size: int) -> bool:
    return int(array.data.ptr) % size == 0
