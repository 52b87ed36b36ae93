"""Memory that ends where no memory is: reading or writing one byte beyond it ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(count: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """An array whose last byte is the last of its page, before a page that faults when touched."""
    size = count * np.dtype(dtype).itemsize
    whole = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    array = np.frombuffer(memory, np.uint8)
    if _libc.mprotect(array.ctypes.data + whole, mmap.PAGESIZE, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return array[whole - size : whole].view(dtype)


def guarded_bytes(content: bytes) -> memoryview:
    """`content` in guarded memory."""
    array = guarded(len(content), np.uint8)
    array[:] = np.frombuffer(content, np.uint8)
    return array.data
