"""A stand-in for CuPy on the host, for tests only: see the README beside this package."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy import cuda
from cupy._array import as_host, compute, ndarray, wrap
from cupy._kernel import RawModule
from cupy._stream import get_current_stream

__version__ = "0.stand-in"
__all__ = ["RawModule", "asarray", "asnumpy", "cuda", "empty", "get_array_module", "ndarray", "zeros"]

float16, float32, float64 = np.float16, np.float32, np.float64
int32, int64, uint8, uint16, uint32, uint64 = np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64
bool_ = np.bool_
inf, nan, newaxis = np.inf, np.nan, None

# Names that mean the same in CuPy; arrays must all be of the device.
_SAME = frozenset(
    name
    for line in (
        "abs absolute add all any arange argmax array_equal clip concatenate copyto count_nonzero divide",
        "dot equal exp flatnonzero greater isfinite less log logical_and matmul max maximum mean min minimum",
        "multiply negative nonzero not_equal ones reciprocal rint sign sqrt square stack subtract sum take",
        "tanh tensordot where",
    )
    for name in line.split()
)


def __getattr__(name: str) -> Any:
    if name not in _SAME:
        raise AttributeError(f"the stand-in for CuPy has no {name!r}")
    function = getattr(np, name)

    def on_device(*arguments: Any, **named: Any) -> Any:
        get_current_stream().flush()
        host = {key: as_host(value) for key, value in named.items()}
        result = compute(function, name, map(as_host, arguments), host)
        out = named.get("out")
        return out if out is not None else wrap(result)

    return on_device


def empty(shape: Any, dtype: Any = float) -> ndarray:
    return ndarray(shape, dtype)


def empty_like(array: ndarray) -> ndarray:
    return ndarray(array.shape, array.dtype)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    made = ndarray(shape, dtype)
    made.fill(0)
    return made


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    return wrap(np.full(shape, value, dtype))


def zeros_like(array: ndarray) -> ndarray:
    return zeros(array.shape, array.dtype)


def asarray(values: Any, dtype: Any = None) -> ndarray:
    """Copies from the host, as CuPy does; an array of the device is returned as it is."""
    if isinstance(values, ndarray):
        return values if dtype in (None, values.dtype) else values.astype(dtype)
    get_current_stream().flush()
    return wrap(np.array(values, dtype))


array = asarray


def from_dlpack(tensor: Any) -> ndarray:
    """The memory of a tensor of PyTorch's, which is the host's, as if it were the device's."""
    get_current_stream().flush()
    return ndarray.of(tensor.numpy())


def ascontiguousarray(values: ndarray) -> ndarray:
    return values if values.flags.c_contiguous else values.copy()


def asnumpy(
    values: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> Any:
    if isinstance(values, ndarray):
        return values.get(stream=stream, out=out, blocking=blocking)
    return np.asarray(values)


def get_array_module(*arguments: Any) -> Any:
    import sys

    return sys.modules[__name__] if any(isinstance(value, ndarray) for value in arguments) else np


def get_default_memory_pool() -> Any:
    return cuda.MemoryPool()


def is_available() -> bool:
    return cuda.is_available()
