"""The calls of CUDA's runtime that p2psgd makes by name."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from cupy._array import _registered
from cupy._stream import stream_of, synchronize_all

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
hostRegisterDefault, hostRegisterPortable, hostRegisterMapped = 0, 1, 2


class CUDARuntimeError(RuntimeError):
    """What CUDA refuses."""


def getDeviceCount() -> int:
    count = int(os.environ.get("CUDA_ON_HOST_DEVICES", "1"))
    if count == 0:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return count


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {"name": b"stand-in on the host", "major": 9, "minor": 0, "multiProcessorCount": 4}


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def deviceSynchronize() -> None:
    synchronize_all()


def streamSynchronize(stream: int) -> None:
    stream_of(stream).flush()


def refuse_pinning() -> None:
    if os.environ.get("CUDA_ON_HOST_REFUSE_PINNING"):
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")


def hostRegister(ptr: int, size: int, flags: int) -> None:
    refuse_pinning()
    if ptr in _registered:
        raise CUDARuntimeError(
            "cudaErrorHostMemoryAlreadyRegistered: part or all of the memory is registered"
        )
    _registered[ptr] = size


def hostUnregister(ptr: int) -> None:
    if _registered.pop(ptr, None) is None:
        raise CUDARuntimeError(
            "cudaErrorHostMemoryNotRegistered: pointer does not correspond to a registered region"
        )


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    synchronize_all()
    ctypes.memmove(dst, src, size)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    stream_of(stream).order(lambda: ctypes.memmove(dst, src, size) and None)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    stream_of(stream).order(lambda: ctypes.memset(ptr, value, size) and None)
