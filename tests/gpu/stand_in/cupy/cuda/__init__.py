"""Devices, streams, events and memory."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Any, Self

import numpy as np

from cupy._array import PinnedMemoryPointer, pinned_memory
from cupy._stream import Event, ExternalStream, Stream, get_current_stream, synchronize_all
from cupy.cuda import runtime

__all__ = ["Device", "Event", "ExternalStream", "Stream", "get_current_stream", "runtime"]

_current = threading.local()


def is_available() -> bool:
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False


class Device:
    """`with` it, or after use(), it is the current one; all have the same memory here."""

    def __init__(self, device: int | None = None) -> None:
        self.id = getattr(_current, "device", 0) if device is None else device
        self._before: list[int] = []

    def __int__(self) -> int:
        return self.id

    def use(self) -> None:
        if not 0 <= self.id < runtime.getDeviceCount():
            raise runtime.CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        _current.device = self.id

    def __enter__(self) -> Self:
        self._before.append(getattr(_current, "device", 0))
        self.use()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.device = self._before.pop()

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def mem_info(self) -> tuple[int, int]:
        return 2**33, 2**34

    def synchronize(self) -> None:
        synchronize_all()


class MemoryPool:
    def free_all_blocks(self) -> None: ...

    def used_bytes(self) -> int:
        return 0


class UnownedMemory:
    """Memory that the device reaches and somebody else keeps."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def array_of(self, shape: Any, dtype: Any) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self.ptr + size > self.mem.ptr + self.mem.size:
            raise ValueError("the array ends behind its memory")
        memory = (ctypes.c_ubyte * size).from_address(self.ptr)
        memory.owner = self.mem  # type: ignore[attr-defined]
        return np.frombuffer(memory, dtype).reshape(shape)


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    runtime.refuse_pinning()
    return pinned_memory(size)  # type: ignore[no-any-return]


def get_elapsed_time(start: Event, end: Event) -> float:
    start.synchronize()
    end.synchronize()
    return 1e3 * (end.time_s - start.time_s)


def profile() -> None:
    raise NotImplementedError
