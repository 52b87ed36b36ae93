"""Arrays of the device: numpy's, kept apart from those of the host as CuPy keeps them."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from cupy._stream import get_current_stream

_chance = np.random.default_rng(int(os.environ.get("CUDA_ON_HOST_SEED", "0")))
_SCALARS = (bool, int, float, np.generic, str, slice, tuple, list, type, type(None), type(...), np.dtype)


def garbage(shape: Any, dtype: Any) -> Any:
    """A block of it again and again, aligned as CuPy's allocator does."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (
        np.resize(np.frombuffer(_chance.bytes(4099), np.uint8), size + 512)
        if size
        else np.empty(512, np.uint8)
    )
    begin = -memory.ctypes.data % 512
    return memory[begin : begin + size].view(dtype).reshape(shape)


def as_host(value: Any) -> Any:
    """The numpy array behind one of the device; a scalar as it is; TypeError for an array of the host."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, tuple | list):
        return type(value)(as_host(one) for one in value)
    if isinstance(value, _SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def wrap(value: Any) -> Any:
    """What numpy returned, as CuPy returns it: also a single number stays on the device."""
    if isinstance(value, tuple):
        return tuple(map(wrap, value))
    if isinstance(value, np.ndarray | np.generic):
        return ndarray.of(np.asarray(value))
    return value


_pinned: dict[int, int] = {}  # address and size
_registered: dict[int, int] = {}  # address and size of memory of others that is page-locked


def pinned_memory(size: int) -> Any:
    """Memory of the host that copies read and write when they are done, not when they are ordered."""
    memory = garbage(max(size, 1), np.uint8).view(PinnedMemoryPointer)
    owner = memory
    while isinstance(owner.base, np.ndarray):  # what views of it keep alive
        owner = owner.base
    _pinned[memory.ptr] = memory.nbytes
    weakref.finalize(owner, _pinned.pop, memory.ptr, None)
    return memory


def is_pinned(array: Any) -> bool:
    """Whether all of it is page-locked."""
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    return any(ptr <= begin and end <= ptr + size for ptr, size in (_pinned | _registered).items())


_TINY = np.finfo(np.float32).tiny
_FLUSHING = ("add", "subtract", "multiply", "divide")  # that of all else nobody relies on


def flushed(value: Any) -> Any:
    """Denormals of float32 as zeros: CuPy compiles its own arithmetic with -ftz=true as well."""
    if getattr(value, "dtype", None) != np.float32:
        return value
    tiny = (np.abs(value) < _TINY) & (value != 0)
    return np.where(tiny, np.copysign(np.float32(0), value), value) if tiny.any() else value


def compute(function: Any, name: str, inputs: Any, named: Any) -> Any:
    """What a function of numpy's makes of arrays of the host, as the device does it."""
    with np.errstate(all="ignore"):  # a device never warns
        if name not in _FLUSHING:
            return function(*inputs, **named)
        result = function(*map(flushed, inputs), **named)
        if isinstance(result, np.ndarray):
            result[...] = flushed(result)
            return result
        return flushed(result)


class PinnedMemoryPointer(np.ndarray):  # type: ignore[type-arg]
    """A buffer, as CuPy's is one; `ptr` is its address."""

    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)


class _Memory:
    def __init__(self, array: Any) -> None:
        self._array = array  # keeps it alive
        self.ptr: int = array.ctypes.data


class ndarray(NDArrayOperatorsMixin):
    """Work on it belongs to the current stream, and is done at once."""

    _host: Any
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None) -> None:
        if memptr is None:
            self._host = garbage(shape, dtype)
        else:
            self._host = memptr.array_of(shape, np.dtype(dtype))

    @classmethod
    def of(cls, host: Any) -> ndarray:
        made = cls.__new__(cls)
        made._host = host
        return made

    @property
    def data(self) -> _Memory:
        return _Memory(self._host)

    @property
    def dtype(self) -> Any:
        return self._host.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        return int(self._host.size)

    @property
    def ndim(self) -> int:
        return int(self._host.ndim)

    @property
    def nbytes(self) -> int:
        return int(self._host.nbytes)

    @property
    def itemsize(self) -> int:
        return int(self._host.itemsize)

    @property
    def flags(self) -> Any:
        return self._host.flags

    @property
    def T(self) -> ndarray:
        return ndarray.of(self._host.T)

    @property
    def device(self) -> Any:
        from cupy import cuda

        return cuda.Device()

    def _do(self, name: str, *arguments: Any, **named: Any) -> Any:
        get_current_stream().flush()
        with np.errstate(all="ignore"):
            return wrap(
                getattr(self._host, name)(
                    *map(as_host, arguments), **{key: as_host(value) for key, value in named.items()}
                )
            )

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """A copy on the host."""
        (get_current_stream() if stream is None else stream).flush()
        if out is None:
            return self._host.copy()
        out[...] = self._host
        return out

    def set(self, values: Any, stream: Any = None) -> None:
        if not isinstance(values, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError("Shape or dtype mismatch")
        stream = get_current_stream() if stream is None else stream
        if is_pinned(values):  # read when it is copied
            stream.order(lambda: self._host.__setitem__(..., values))
        else:
            stream.flush()
            self._host[...] = values

    def fill(self, value: Any) -> None:
        self._do("fill", value)

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy"
            " array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        get_current_stream().flush()
        out = named.pop("out", ())
        if out:
            named["out"] = tuple(as_host(one) for one in out)
        result = compute(getattr(ufunc, method), ufunc.__name__, map(as_host, inputs), named)
        return out[0] if out else wrap(result)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if all(isinstance(one, int | slice | type(None) | type(...)) for one in keys):  # a view: no work
            return ndarray.of(self._host[keys if ... in keys else (*keys, ...)])
        get_current_stream().flush()
        return wrap(self._host[as_host(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        get_current_stream().flush()
        with np.errstate(all="ignore"):
            self._host[as_host(key)] = as_host(value)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def _number(self) -> Any:
        get_current_stream().flush()
        return self._host.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __index__(self) -> int:
        return int(self._number())

    def __bool__(self) -> bool:
        return bool(self._number())

    def item(self) -> Any:
        return self._number()

    def tolist(self) -> Any:
        get_current_stream().flush()
        return self._host.tolist()

    def tobytes(self) -> bytes:
        get_current_stream().flush()
        return self._host.tobytes()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"cupy.{self._host!r}"


def _forward(name: str) -> Any:
    def method(self: ndarray, *arguments: Any, **named: Any) -> Any:
        return self._do(name, *arguments, **named)

    method.__name__ = name
    return method


def _view(name: str) -> Any:
    def method(self: ndarray, *arguments: Any, **named: Any) -> Any:
        return ndarray.of(getattr(self._host, name)(*arguments, **named))

    method.__name__ = name
    return method


for _name in ("all", "any", "argmax", "astype", "copy", "max", "mean", "min", "nonzero", "sum", "take"):
    setattr(ndarray, _name, _forward(_name))
for _name in ("ravel", "reshape", "transpose", "view"):  # no work for the device; of contiguous arrays here
    setattr(ndarray, _name, _view(_name))
