"""p2psgd.gpu on the host, with the stand-in for CuPy, or on a device, with CuPy itself; both in one process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

STAND_IN = Path(__file__).parent / "stand_in"


@dataclass(frozen=True)
class Backend:
    """`cupy`, CuPy or its stand-in; `load` gives the module of p2psgd.gpu that uses it, by its last name."""

    cupy: Any
    load: Callable[[str], Any]


def why_no_device() -> str | None:
    """Why there is no device to test on, None if there is one."""
    try:
        import cupy  # noqa: PLC0415

        cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        return "needs CuPy: pip install p2psgd[gpu]"
    except Exception as error:
        return f"needs a CUDA device: {error}"
    return None


@contextmanager
def stand_in() -> Iterator[Backend]:
    """On the host. Modules of p2psgd.gpu that were imported before, and CuPy, are back afterwards."""
    with _apart(), _first_in_path(STAND_IN):
        yield Backend(importlib.import_module("cupy"), _load)


@contextmanager
def device() -> Iterator[Backend]:
    """On the device of why_no_device()."""
    yield Backend(importlib.import_module("cupy"), _load)


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"p2psgd.gpu.{name}")


@contextmanager
def _apart() -> Iterator[None]:
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if _belongs(name)}
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _belongs(name)]:
            del sys.modules[name]
        sys.modules.update(ours)


def _belongs(name: str) -> bool:
    return name in ("cupy", "p2psgd.gpu") or name.startswith(("cupy.", "p2psgd.gpu."))


@contextmanager
def _first_in_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
