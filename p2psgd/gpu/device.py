"""Choose the device that a trainer computes on, by a word: auto, cpu, cuda or cuda:N.

CuPy is imported only here and below, and only once somebody asks: p2psgd runs without it.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import how_to_install

AUTO: Final = "auto"
CPU: Final = "cpu"
WORDS: Final = "auto, cpu, cuda or cuda:N"
_FORM: Final = re.compile(r"auto|cpu|cuda(?::(\d{1,3}))?")
DRIVER: Final = Path("/proc/driver/nvidia/version")  # there once the driver of an NVIDIA GPU is loaded
INSTALL: Final = (
    f"{how_to_install('gpu')}; for a driver older than version 580 cupy-cuda12x[ctk] in place of the extra"
)


def available() -> bool:
    """Return whether this machine has a CUDA device and CuPy for it."""
    return _trouble() is None


def find_device(word: str) -> int | None:
    """Return the number of the CUDA device that this word names, None for the CPU.

    "auto" is the first CUDA device, or the CPU if there is none. UsageError with one sentence if there is no
    such device, or no CuPy to use it.
    """
    index = _parse(word)
    if index is None:
        return None if word == CPU or _trouble() else 0
    trouble = _trouble()
    if trouble:
        raise UsageError(f"device {word}: {trouble}; or give device cpu", ExitCode.CONFIGURATION)
    count = _count()
    if index >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(f"device {word}: there is none, this machine has {known}", ExitCode.CONFIGURATION)
    return index


def is_device(word: str) -> bool:
    """Return whether this word could name a device of some machine."""
    return _FORM.fullmatch(word) is not None


def why_not(word: str) -> str:
    """Explain why "auto" came out as the CPU: a sentence where a GPU could perhaps be had,
    empty where nothing suggests that there is one.
    """
    trouble = _trouble() if word == AUTO else None
    expected = DRIVER.exists() or importlib.util.find_spec("cupy") is not None
    return f"trains on the CPU: {trouble}" if trouble and expected else ""


def _parse(word: str) -> int | None:
    """Return the number of a CUDA device; None for auto and cpu."""
    if word in (AUTO, CPU):
        return None
    found = _FORM.fullmatch(word)
    if not found:
        raise UsageError(f"device {word!r:.40} is not known: give {WORDS}", ExitCode.CONFIGURATION)
    return int(found[1] or 0)


def _trouble() -> str | None:
    """Explain why no CUDA device can be used, with what to do about it; None if one can."""
    if importlib.util.find_spec("cupy") is None:
        driver = "" if DRIVER.exists() else "no NVIDIA driver is found here, and "
        return f"{driver}CuPy is not installed: {INSTALL}"
    try:
        count = _count()
    except ImportError as error:
        return f"CuPy cannot be imported ({first_line(error)}): {INSTALL}"
    except RuntimeError as error:  # CUDARuntimeError is one
        return f"CuPy finds no CUDA device ({first_line(error)}): install or update the NVIDIA driver"
    return None if count else "CuPy finds no CUDA device: install or update the NVIDIA driver"


def _count() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, which may be a page long."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip("= \n")), type(error).__name__
    )
