"""RawModule: the source is compiled for the host, and a launch is ordered onto the current stream.

Whatever the options, CuPy appends -ftz=true to them: the kernels here flush denormals too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from cupy._array import ndarray
from cupy._stream import get_current_stream

_ORDERS = {"forward": 0, "reverse": 1, "random": 2}
_BUILD = Path(__file__).parents[2] / "on_host" / "build.py"  # found also where `tests` is not importable
_launches = 0


def build(code: str) -> Path:
    """The library of these kernels on the host."""
    spec = importlib.util.spec_from_file_location("cuda_on_host_build", _BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library: Path = module.build(code)
    return library


class RawModule:
    def __init__(
        self,
        *,
        code: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        name_expressions: Any = None,
    ) -> None:
        self.code, self.options, self.backend = code, (*options, "-ftz=true"), backend
        self._library: Any = None

    def compile(self, log_stream: Any = None) -> None:
        if self._library is None:
            if "--fmad=false" not in self.options or any("fast" in option for option in self.options):
                raise ValueError(f"with the options {self.options} the bits are not those of the host")
            self._library = ctypes.CDLL(str(build(self.code)))
            self._library.launch_kernel.restype = ctypes.c_char_p

    def get_function(self, name: str) -> RawKernel:
        self.compile()
        return RawKernel(self._library, name)


class RawKernel:
    def __init__(self, library: Any, name: str) -> None:
        self._library = library
        self.name = name
        sizes = (ctypes.c_size_t * 64)()
        arguments = library.arguments_of(name.encode(), sizes)
        if arguments < 0:
            raise ValueError(f"named symbol not found: {name}")
        self._sizes = list(sizes)[:arguments]

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        global _launches
        if len(grid) != 1 or len(block) != 1 or shared_mem:
            raise NotImplementedError("only one dimension, and no dynamic shared memory")
        values = [_bytes(value) for value in args]
        if [len(value) for value in values] != self._sizes:
            raise ValueError(f"{self.name}: arguments of {[*map(len, values)]} bytes, it takes {self._sizes}")
        _launches += 1
        seed = int(os.environ.get("CUDA_ON_HOST_SEED", "0")) + _launches
        order = _ORDERS[os.environ.get("CUDA_ON_HOST_ORDER", "forward")]
        resident = int(os.environ.get("CUDA_ON_HOST_BLOCKS", "4"))

        def launch() -> None:
            buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
            pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            refusal = self._library.launch_kernel(
                *(self.name.encode(), int(grid[0]), int(block[0]), pointers, order),
                *(ctypes.c_ulonglong(seed), resident),
            )
            if refusal is not None:
                raise RuntimeError(f"{self.name}: {refusal.decode()}")
            _ = args  # arrays live until now

        get_current_stream().order(launch)


def _bytes(value: Any) -> bytes:
    """As CuPy passes it: an array by its address, a number of Python in 8 bytes."""
    if isinstance(value, ndarray):
        return np.uint64(value.data.ptr).tobytes()
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, int):
        return np.int64(value).tobytes()
    raise TypeError(f"Unsupported type {type(value)}")
