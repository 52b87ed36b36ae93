"""A node's checkpoints as people and machines read them; works beside a running node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from p2psgd.base import formatting
from p2psgd.base.errors import CheckpointError, ExitCode, UsageError
from p2psgd.observe.digest import count_applied, unit_of
from p2psgd.storage.checkpoint import Checkpoint, CheckpointMeta, read_checkpoint
from p2psgd.storage.checkpoint_store import CheckpointStore, Entry
from p2psgd.storage.event_log import EVENTS_NAME
from p2psgd.storage.files import FOLDER


def open_store(state: Path) -> CheckpointStore:
    """Open the checkpoints in a state directory; UsageError if there are none."""
    store = CheckpointStore(state / FOLDER)
    if not store.numbers():
        if (state / EVENTS_NAME).exists():
            words = "that node has not written one yet, which it does about every twelve failure timeouts"
        else:
            words = "name a node's state directory with --state"
        raise UsageError(f"there is no checkpoint in {store.folder}: {words}", ExitCode.DATA)
    return store


def read_whole(store: CheckpointStore, number: int | None) -> Checkpoint:
    """Read the checkpoint of that number, without one the newest that is whole.

    UsageError if there is none, CheckpointError if it is damaged.
    """
    if number is None:
        found, warnings = store.latest()
        if found is None:
            raise CheckpointError("; ".join(warnings))
        return found
    entry = store.entry(number)
    if entry is None:
        there = formatting.listed([str(known) for known in store.numbers()]) or "none"
        words = f"there is no checkpoint {number} in {store.folder}; there are: {there}"
        raise UsageError(words, ExitCode.DATA)
    if entry.fault:
        raise CheckpointError(f"checkpoint {number} cannot be used: {entry.fault}")
    return read_checkpoint(entry.path)


def render_list(entries: Sequence[Entry]) -> str:
    """Return a line for each, newest last."""
    units = {unit_of(entry.meta.frontier) for entry in entries if entry.meta}
    rows = [("number", "written", "rounds" if units == {"round"} else "updates", "size", "")]
    for entry in entries:
        meta = entry.meta
        rows.append(
            (
                str(entry.number),
                _time(meta) if meta else formatting.UNKNOWN,
                formatting.grouped(_updates(meta) if meta else None),
                formatting.size(entry.bytes),
                f"damaged: {entry.fault}" if entry.fault else "whole",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"{number:>{widths[0]}}  {written:{widths[1]}}  {updates:>{widths[2]}}  {size:>{widths[3]}}  {state}"
        for number, written, updates, size, state in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def describe(entry: Entry) -> dict[str, Any]:
    """Return the same for machines; `fault` is None if it is whole, and what cannot be read is None too."""
    meta = entry.meta
    return {
        "number": entry.number,
        "written": datetime.fromtimestamp(meta.written_at, UTC).isoformat(timespec="seconds")
        if meta
        else None,
        "unit": unit_of(meta.frontier) if meta else None,
        "updates": _updates(meta) if meta else None,
        "bytes": entry.bytes,
        "file": str(entry.path),
        "fault": entry.fault or None,
    }


def _updates(meta: CheckpointMeta) -> int:
    """Return the updates of all origins; in a dense ring, which has none, the rounds."""
    return sum(map(count_applied, meta.frontier))


def _time(meta: CheckpointMeta) -> str:
    return datetime.fromtimestamp(meta.written_at).astimezone().isoformat(" ", "seconds")
