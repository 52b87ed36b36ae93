"""Memory that host and device share: page-locked host memory, and other libraries' arrays on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.base.formatting import say

# ----------------------------------------------------------------------------
# Page-locked memory of the host, which a device reads and writes by itself while the host does something
# else.
#
# Where it is refused (a limit on locked memory, a container) ordinary memory does the same, more slowly;
# that is said once.


_READ_ONLY = 8  # cudaHostRegisterReadOnly, which CuPy has no name for


def pinned_empty(count: int, dtype: Any) -> NDArray[Any]:
    """Return a new array (count,) of the host's, page-locked if that can be had."""
    dtype = np.dtype(dtype)
    try:
        memory = cupy.cuda.alloc_pinned_memory(count * dtype.itemsize)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        _note(str(error))
        return np.empty(count, dtype)
    return np.frombuffer(memory, dtype, count)


def pinned_words(count: int) -> tuple[NDArray[np.uint32], Any] | None:
    """Return an array of words (count,) as the host and as the device see it; None if that cannot be had."""
    size = count * np.dtype(np.uint32).itemsize
    try:
        memory = cupy.cuda.alloc_pinned_memory(size)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        _note(str(error))
        return None
    unowned = cupy.cuda.UnownedMemory(memory.ptr, size, memory)
    there = cupy.ndarray((count,), np.uint32, cupy.cuda.MemoryPointer(unowned, 0))
    return np.frombuffer(memory, np.uint32, count), there


def copy_in(there: Any, here: NDArray[Any], count: int, stream: Any) -> None:
    """Order a copy of the first `count` elements of `here` to `there`, of one type, on this stream; `here`,
    page-locked, must stay as it is until that is done.
    """
    runtime = cupy.cuda.runtime
    size = count * here.itemsize
    runtime.memcpyAsync(there.data.ptr, here.ctypes.data, size, runtime.memcpyHostToDevice, stream.ptr)


class Registered:
    """Memory that is there already, page-locked until `close`, if that can be had."""

    def __init__(self, array: NDArray[Any], *, read_only: bool = False) -> None:
        self._address = 0
        try:
            cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, _READ_ONLY if read_only else 0)
            self._address = array.ctypes.data
        except cupy.cuda.runtime.CUDARuntimeError as error:
            _note(str(error))

    def close(self) -> None:
        """Undo the registration, before the memory goes. May be called twice."""
        address, self._address = self._address, 0
        if address:
            cupy.cuda.runtime.hostUnregister(address)


@cache
def _note(reason: str) -> None:
    limited = "cudaErrorMemoryAllocation" in reason
    advice = "; raise `ulimit -l`, or LimitMEMLOCK of the service" if limited else ""
    say(f"memory of the host cannot be page-locked ({reason}): copies to and from the GPU are slower{advice}")


# ----------------------------------------------------------------------------
# Arrays and streams that other libraries have made on the device, as CuPy's.


xp: ModuleType = cupy


def view(tensor: Any) -> Any:
    """Return the same memory as a CuPy array, from any object with DLPack."""
    return cupy.from_dlpack(tensor)


def on_stream(pointer: int) -> AbstractContextManager[Any]:
    """Make this stream, a cudaStream_t, CuPy's current one inside the block."""
    stream: AbstractContextManager[Any] = cupy.cuda.ExternalStream(pointer)
    return stream
