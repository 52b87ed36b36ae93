"""p2psgd.gpu on the host, with the stand-in for CuPy, or on a device, with CuPy; both in one process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

STAND_IN: Final = Path(__file__).parent / "stand_in"


@dataclass(frozen=True)
class Backend:
    """CuPy or its stand-in, and the modules of p2psgd.gpu that use it."""

    name: str
    cupy: Any
    loaded: dict[str, ModuleType] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """The module of p2psgd.gpu of this last name; only while the backend is in use."""
        return importlib.import_module(f"p2psgd.gpu.{name}")


_stand_ins: Final[list[Backend]] = []  # one, as soon as it is needed


def why_no_device() -> str | None:
    """Why there is no device to test on, None if there is one."""
    try:
        import cupy  # noqa: PLC0415

        cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        return "needs CuPy: pip install '.[gpu]'"
    except Exception as error:
        return f"needs a CUDA device: {error}"
    return None


@contextmanager
def stand_in() -> Iterator[Backend]:
    """In use, CuPy is the stand-in here, and p2psgd.gpu uses it; afterwards all is as it was before."""
    before = _taken_out()
    sys.path.insert(0, str(STAND_IN))
    try:
        if not _stand_ins:
            _stand_ins.append(Backend("host", importlib.import_module("cupy")))
        else:
            sys.modules.update(_stand_ins[0].loaded)
        yield _stand_ins[0]
    finally:
        sys.path.remove(str(STAND_IN))
        kept = _taken_out()
        if _stand_ins:
            _stand_ins[0].loaded.update(kept)
        sys.modules.update(before)


@contextmanager
def device() -> Iterator[Backend]:
    """The device of why_no_device()."""
    cupy = importlib.import_module("cupy")
    if os.environ.get("P2PSGD_GPU_WITHOUT_POOL"):
        cupy.cuda.set_allocator(None)
    yield Backend("device", cupy)


@contextmanager
def schedule(order: str, seed: int = 0, blocks: int = 4) -> Iterator[None]:
    """How the stand-in runs kernels: see its README."""
    wanted = {"ORDER": order, "SEED": str(seed), "BLOCKS": str(blocks)}
    names = {f"CUDA_ON_HOST_{name}": value for name, value in wanted.items()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _taken_out() -> dict[str, ModuleType]:
    """The modules of CuPy and p2psgd.gpu, from now on not imported."""
    names = [
        name for name in sys.modules if name.split(".")[0] == "cupy" or f"{name}.".startswith("p2psgd.gpu.")
    ]
    return {name: sys.modules.pop(name) for name in names}
