"""Fuzzing the native core: see README.md here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TARGETS: Final = ("decode", "encode", "apply", "residual")  # sources here, with saved inputs in corpus/
HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
REPLAY: Final = HERE / "replay.cpp"


def source_of(target: str) -> Path:
    """The C++ file of a target."""
    return HERE / f"{target}.cpp"
