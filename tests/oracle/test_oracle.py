"""The quick parts of the oracle hold, and it notices what it must and nothing else."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from p2psgd.core.replica import Replica
from tests.oracle.canonical import text_of
from tests.oracle.files import ROOT, differences, other_machine
from tests.oracle.schema import differences as schema_differences
from tests.oracle.schema import types_of, union
from tests.oracle.subject import trace_seed
from tests.oracle.trace import Line, Trace
from tests.sim.mutants import MUTANTS, mutated


@pytest.mark.parametrize("part", ["vectors", "cli", "sim"])
def test_the_quick_parts_are_as_frozen(part: str) -> None:
    """In a process of its own, since `cli` forks; the hash seed differs from the one that froze."""
    if other := other_machine(part):
        pytest.skip(f"{part} was frozen elsewhere: here is {other}")
    command = [sys.executable, "-m", "tests.oracle", "check", part, "--seeds", "0:5"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_differs_with_a_bug_in_the_core_and_nothing_else_watches_afterwards() -> None:
    handle = Replica.handle
    before = trace_seed("async", 2).hashes()
    with mutated(MUTANTS["duplicates-applied"]):
        assert trace_seed("async", 2).hashes() != before
    assert Replica.handle is handle


@dataclass(frozen=True)
class Old:
    peer: tuple[int, int]
    words: str
    kinds: frozenset[str]
    numbers: dict[int, bytes]


class New(NamedTuple):
    source: tuple[int, int]
    message: str
    reasons: set[str]
    frames: dict[int, bytearray]


class Reason(enum.StrEnum):
    LATE = "late"


def test_names_do_not_matter_and_values_do() -> None:
    old = text_of(Old((1, 2), "it is late", frozenset({"late", "x", "y"}), {1: b"a", 2: b"b"}))
    new = New((1, 2), "it is late", {"y", Reason.LATE, "x"}, {2: bytearray(b"b"), 1: bytearray(b"a")})
    assert text_of(new) == old
    assert text_of(new._replace(message="it is later")) != old
    assert text_of(np.arange(3, dtype=np.int32)) != text_of(np.arange(3, dtype=np.uint32))
    with pytest.raises(TypeError, match="has no text"):
        text_of(object())


def test_only_the_order_at_one_place_matters() -> None:
    lines = [Line(1.0, "1.1", "trainer", "a"), Line(1.0, "1.1", "disk", "b"), Line(1.0, "1.1", "disk", "c")]

    def hashes(*order: int) -> tuple[str, ...]:
        trace = Trace()
        for index in order:
            trace.add("orders", lines[index])
        return trace.hashes()

    assert hashes(0, 1, 2) == hashes(1, 0, 2) == hashes(1, 2, 0)
    assert hashes(0, 1, 2) != hashes(0, 2, 1)


def test_differences_are_named() -> None:
    frozen = {"a": ["x", "y"], "b": 1, "c": 2}
    assert list(differences("part", frozen, frozen)) == []
    now = {"a": ["x", "z"], "b": 1, "d": 2}
    assert list(differences("part", frozen, now)) == [
        "part a: -y",
        "part a: +z",
        "part c: is gone",
        "part d: is new",
    ]


def test_a_schema_knows_what_may_be_missing_and_what_may_not() -> None:
    first = types_of([{"a": 1, "dropped": {"view": 2}, "rows": [{"x": 1.5}, {"x": None}]}])
    second = types_of([{"a": 1, "dropped": {}, "rows": [{"x": 2}]}])
    frozen = {"status": union([first, second])}
    assert frozen["status"]["dropped{}?"] == "int?"
    assert frozen["status"]["rows[].x"] == "float? int? null?"
    for fine in (first, second):
        assert list(schema_differences(frozen, {"status": fine})) == []
    now = types_of([{"a": "1", "b": 1, "dropped": {"other": 1}}])
    assert list(schema_differences(frozen, {"status": now})) == [
        "status: a: is text, and was int",
        "status: b: is new, int",
        "status: a: is never int, and was int",
        "status: rows: is gone, was list",
        "status: rows[]: is gone, was object",
        "status: rows[].x: is gone, was float int null",
    ]


def test_what_may_be_null_must_be_something_in_one_document_of_a_kind() -> None:
    nothing, something = types_of([{"a": None}]), types_of([{"a": 1.5}])
    frozen = {"status idle": union([nothing]), "status ready": union([something])}
    assert not list(schema_differences(frozen, {"status idle": something, "status ready": nothing}))
    assert list(schema_differences(frozen, {"status idle": nothing, "status ready": nothing})) == [
        "status: a: is never float"
    ]
