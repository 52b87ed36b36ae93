"""What the fingerprint of a run covers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from p2psgd.core.run_spec import RunSpec, check_limits
from p2psgd.core.state import RangeWarning
from p2psgd.wire import codec

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
        {"shards": 1},
    ],
)
def test_runs_that_differ_in_anything_have_different_fingerprints(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC).fingerprint == SPEC.fingerprint
    assert dataclasses.replace(SPEC, **change).fingerprint != SPEC.fingerprint


COUNTING = dataclasses.replace(SPEC, shards=3)


def test_weights_and_shard_counts_share_one_index_space() -> None:
    assert (SPEC.weights, SPEC.coordinates) == (1000, 1000)
    assert (COUNTING.weights, COUNTING.coordinates) == (1000, 1006)
    assert COUNTING.name_coordinate(999) == "a[49, 19]"
    assert [COUNTING.name_coordinate(index) for index in (1000, 1002, 1003, 1005)] == [
        "the count of nodes that hold shard 0",
        "the count of nodes that hold shard 2",
        "the count of uses of shard 0",
        "the count of uses of shard 2",
    ]
    with pytest.raises(IndexError, match="coordinate 1006 of a run of 1006"):
        COUNTING.name_coordinate(1006)
    with pytest.raises(IndexError, match="coordinate 1000 of a run of 1000"):
        SPEC.name_coordinate(1000)


def test_limits_hold_for_weights_and_counts_together() -> None:
    check_limits(COUNTING)
    most = (codec.WEIGHTS_MAX - 1000) // 2
    check_limits(dataclasses.replace(SPEC, shards=most))
    with pytest.raises(ValueError, match="a run of 1000 weights and 2147482650 shard counts: "):
        check_limits(dataclasses.replace(SPEC, shards=most + 1))
    with pytest.raises(ValueError, match="a run in mode ring-sparse counts no shards"):
        check_limits(dataclasses.replace(COUNTING, mode="ring-sparse"))


def test_a_warning_about_a_count_tells_the_count() -> None:
    told = RangeWarning(1004, 2**23 + 1, fatal=False).describe(COUNTING)
    assert (
        told
        == "the count of uses of shard 1 has reached 8388609, the run stops at 16777216, the largest possible"
    )
