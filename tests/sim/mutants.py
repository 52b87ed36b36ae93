"""Bugs put into the core on purpose: each must be found, or the simulator is worth nothing.

A mutant replaces text in the source of a function and puts the result in its place for as long as it is
wanted. Text that is not there exactly once is an error: who changes the core mends the mutant.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from p2psgd.core import frontier, lattice, log, repair, replica
from p2psgd.wire import update
from tests.sim import world


@dataclass(frozen=True, slots=True)
class Edit:
    """In function `path` of `module`: `old` becomes `new`."""

    module: ModuleType
    path: str
    old: str
    new: str


R: Final = "Replica."
MUTANTS: Final[dict[str, tuple[Edit, ...]]] = {
    "duplicates-applied": (
        Edit(replica, R + "_receive_update", "if header.sequence <= applied:", "if False:"),
        Edit(replica, R + "_receive_update", "if self._digest_after(", "if False and self._digest_after("),
        Edit(frontier, "Frontier.advance", "assert sequence ==", "assert True or sequence =="),
    ),
    "duplicates-not-counted": (
        Edit(replica, R + "_receive_update", "if header.sequence <= applied:", "if False:"),
    ),
    "gap-in-sequence-accepted": (
        Edit(replica, R + "_receive_update", "if header.sequence > applied + 1:", "if False:"),
        Edit(replica, R + "_receive_update", "if self._digest_after(", "if False and self._digest_after("),
        Edit(frontier, "Frontier.advance", "assert sequence ==", "assert True or sequence =="),
        Edit(log, "UpdateLog.append", "assert sequence ==", "assert True or sequence =="),
    ),
    "missing-frontier-key-not-0": (
        Edit(frontier, "Frontier.sequence", "(0, 0)", "(1, 0)"),
        Edit(frontier, "Frontier.advance", "assert sequence ==", "assert True or sequence =="),
        Edit(log, "UpdateLog.append", "assert sequence ==", "assert True or sequence =="),
    ),
    "digest-unchecked": (
        Edit(replica, R + "_receive_update", "if self._digest_after(", "if False and self._digest_after("),
    ),
    "checksum-unchecked": (Edit(update, "parse_update", "!= checksum:", "== -1:"),),
    "applied-twice-on-repair": (
        Edit(
            replica,
            R + "_receive_update",
            "self._effects.append(Deliver(body))",
            "self._effects.append(Deliver(body))\n"
            "    if origin != peer.origin: self.lattice.apply(words, header.step, 0)",
        ),
    ),
    "no-push-after-drain": (
        Edit(
            replica,
            R + "_hear",
            "self._credit_bytes, False\n                self._push(peer)",
            "self._credit_bytes, False",
        ),
    ),
    "log-trimmed-early": (
        Edit(
            log, "UpdateLog.append", "self.bytes_held > self.budget_bytes and", "len(self._arrival) > 40 and"
        ),
    ),
    "log-never-trimmed": (
        Edit(log, "UpdateLog.append", "while self.bytes_held", "while False and self.bytes_held"),
    ),
    "old-incarnations-not-repaired": (
        Edit(
            replica,
            R + "_receive_status",
            "if row.sequence > applied and not",
            "if row.sequence > applied and origin.node != self.me.node and not",
        ),
    ),
    "need-ignored": (Edit(replica, R + "_serve", "if event.first <= last:", "if False:"),),
    "need-served-short": (Edit(replica, R + "_serve", "last = min(", "last = -1 + min("),),
    "credit-never-given-back": (
        Edit(replica, R + "_hear", "peer.credit, peer.draining = self._credit_bytes,", "peer.draining ="),
    ),
    "credit-not-spent": (Edit(replica, R + "_send", "peer.credit -= len(frame)", "pass"),),
    "no-ask-after-status": (
        Edit(replica, R + "_receive_status", "if row.sequence > applied and not", "if False and not"),
    ),
    "digest-wrong-after-repair": (
        Edit(
            replica,
            R + "_apply",
            "contribution = header.digest - self.frontier.digest(origin)",
            "contribution = header.digest - (self.frontier.digest(origin) if origin in self.peers else 0)",
        ),
    ),
    "incarnation-reused": (Edit(world, "World.boot", "self._lives[number] += 1", "self._lives[number] = 1"),),
    "status-stale": (Edit(frontier, "Frontier.advance", "self._packed = None", "pass"),),
    "repairs-not-delivered": (
        Edit(
            replica,
            R + "_receive_update",
            "self._effects.append(Deliver(body))",
            "self._effects.extend([Deliver(body)] if origin == peer.origin else [])",
        ),
    ),
    "gap-not-told": (Edit(replica, R + "_push", "self._send(peer, pack_message(gap))", "pass"),),
    "origin-not-hoped-for": (
        Edit(
            repair,
            "Repair.hopeless",
            "ahead - told_gap or (origin in peers and origin not in told_gap)",
            "ahead - told_gap",
        ),
    ),
    "never-hopeless": (Edit(replica, R + "_pass_time", "if hopeless is not None:", "if False:"),),
    "lively-origin-relied-on": (
        Edit(replica, R + "_expected_from_origin", "now - direct.brought", "now - direct.heard"),
    ),
    "running-digest-wrong": (
        Edit(
            lattice,
            "Lattice.apply",
            "(self.digest + contribution) % 2**64",
            "(self.digest ^ contribution) % 2**64",
        ),
    ),
}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run with a mutant in place of the real code; None: with the real code."""
    originals: list[tuple[Any, str, Any]] = []
    try:
        for edit in () if name is None else MUTANTS[name]:
            _apply(edit, originals)
        yield
    finally:
        for owner, attribute, original in reversed(originals):
            setattr(owner, attribute, original)


def _apply(edit: Edit, originals: list[tuple[Any, str, Any]]) -> None:
    owner: Any = edit.module
    *way, attribute = edit.path.split(".")
    for step in way:
        owner = getattr(owner, step)
    original = getattr(owner, attribute)
    source = _SOURCES.get(original) or textwrap.dedent(inspect.getsource(original))
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.path} has {edit.old!r} {source.count(edit.old)} times, not once")
    source = source.replace(edit.old, edit.new)
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<mutant of {edit.path}>", "exec", flags), vars(edit.module), made)
    _SOURCES[made[attribute]] = source
    importers = [] if way else [module for module in IMPORTERS if hasattr(module, attribute)]
    for place in (owner, *importers):
        originals.append((place, attribute, getattr(place, attribute)))
        setattr(place, attribute, made[attribute])


IMPORTERS: Final = (replica,)  # who has imported a function that is edited, by its name
_SOURCES: Final[dict[Any, str]] = {}  # of mutated functions, which have no file
