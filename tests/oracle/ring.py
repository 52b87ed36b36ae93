"""Part `ring`: the final digest of whole runs in ring mode, which are the same bits every time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.oracle.processes import run_local

PAYLOADS: Final = ("sparse", "dense", "dense-float16")
OPTIONS: Final = ("--recipe", "digits", "-n", "3", "--steps", "60", "--mode", "ring")


def observe() -> dict[str, str]:
    """Return the digest of a run of each kind."""
    return {payload: _digest(payload) for payload in PAYLOADS}


def _digest(payload: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        report = run_local(Path(folder), *OPTIONS, "--payload", payload)
    if not report["replicas_identical"]:
        raise RuntimeError(f"the replicas of a {payload} ring differ")
    return f"{report['digest']} after {report['rounds']} rounds"
