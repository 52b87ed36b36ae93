"""Arrays and streams that other libraries have made on the device, as CuPy's."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import cupy

xp: ModuleType = cupy


def view(tensor: Any) -> Any:
    """The same memory as a CuPy array, of anything that speaks DLPack."""
    return cupy.from_dlpack(tensor)


def on_stream(pointer: int) -> AbstractContextManager[Any]:
    """CuPy's current stream in there is this one, a cudaStream_t."""
    stream: AbstractContextManager[Any] = cupy.cuda.ExternalStream(pointer)
    return stream
