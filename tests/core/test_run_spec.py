"""What the fingerprint of a run covers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from p2psgd.core.run_spec import RunSpec

SPEC = RunSpec((("a", (50, 20)),), -20, "async", "label", b"i" * 32, "stall")


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": (("a", (20, 50)),)},
        {"tensors": (("b", (50, 20)),)},
        {"quantum_log2": -19},
        {"mode": "ring"},
        {"label": ""},
        {"initial": b"j" * 32},
        {"two_nodes": "lower-id"},
    ],
)
def test_runs_that_differ_in_anything_have_different_fingerprints(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC).fingerprint == SPEC.fingerprint
    assert dataclasses.replace(SPEC, **change).fingerprint != SPEC.fingerprint
