"""A node's checkpoints as people and machines read them; works beside a running node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from p2psgd.base import formatting
from p2psgd.base.errors import CheckpointError, UsageError
from p2psgd.base.formatting import printable
from p2psgd.observe.digest import count_applied, is_ring, unit_of
from p2psgd.storage.checkpoint import Checkpoint, CheckpointMeta, read_checkpoint
from p2psgd.storage.checkpoint_store import CheckpointStore, Entry
from p2psgd.storage.event_log import EVENTS_NAME
from p2psgd.storage.files import FOLDER


def open_store(state: Path) -> CheckpointStore:
    """The checkpoints in a state directory; UsageError if there are none."""
    store = CheckpointStore(state / FOLDER)
    if not store.numbers():
        if (state / EVENTS_NAME).exists():
            words = "that node has not written one yet, which it does about every twelve failure timeouts"
        else:
            words = "name a node's state directory with --state"
        raise UsageError(f"there is no checkpoint in {store.folder}: {words}")
    return store


def find_entry(store: CheckpointStore, number: int | None) -> Entry:
    """The checkpoint of that number, without one the newest; UsageError if there is none."""
    numbers = store.numbers()
    entry = store.entry(numbers[-1] if number is None and numbers else number or 0)
    if entry is None:
        there = formatting.listed([str(known) for known in numbers]) or "none"
        raise UsageError(f"there is no checkpoint {number} in {store.folder}; there are: {there}")
    return entry


def read_whole(store: CheckpointStore, number: int | None) -> Checkpoint:
    """The checkpoint of that number, without one the newest that is whole.

    UsageError if there is none, CheckpointError if it is damaged.
    """
    if number is None:
        found, warnings = store.latest()
        if found is None:
            raise CheckpointError("; ".join(warnings))
        return found
    entry = find_entry(store, number)
    if entry.fault:
        raise CheckpointError(f"checkpoint {number} cannot be used: {entry.fault}")
    return read_checkpoint(entry.path)


def render_list(entries: Sequence[Entry]) -> str:
    """A line for each, newest last."""
    units = {unit_of(entry.meta.rows) for entry in entries if entry.meta}
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


def describe_entry(entry: Entry) -> dict[str, Any]:
    """All of the description; JSON-ready. Ids and digests are in hex."""
    common = {"number": entry.number, "file": str(entry.path), "bytes": entry.bytes, "fault": entry.fault}
    meta = entry.meta
    if meta is None:
        return common
    trainer = meta.trainer
    return {
        **common,
        "written_at": meta.written_at,
        "run": {
            "fingerprint": meta.fingerprint,
            "label": meta.label,
            "mode": meta.mode,
            "quantum_log2": meta.quantum_log2,
            "weights": meta.spec.weights,
            "initial": meta.initial,
            "tensors": [{"name": name, "shape": list(shape)} for name, shape in meta.tensors],
        },
        "node": f"{meta.node:016x}",
        "incarnation": meta.incarnation,
        "digest": f"{meta.digest:016x}",
        "updates": _updates(meta),
        "frontier": [
            {
                "node": f"{row.node:016x}",
                "incarnation": row.incarnation,
                "sequence": row.sequence,
                "digest": f"{row.digest:016x}",
                "mini_batch": row.mini_batch,
            }
            for row in meta.rows
        ],
        "trainer": None
        if trainer is None
        else {
            "sequence": trainer.sequence,
            "arrays": [
                {"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in trainer.arrays
            ],
            "text": trainer.text,
        },
        "tail_bytes": meta.tail_bytes,
    }


def render_entry(entry: Entry) -> str:
    """The same as lines of text, without a newline at the end."""
    lines = [f"{printable(entry.path)}: {formatting.size(entry.bytes)}, {entry.fault or 'whole'}"]
    meta = entry.meta
    if meta is None:
        return lines[0]
    label = f"{printable(meta.label)}: " if meta.label else ""
    lines += [
        f"written {_time(meta)} by node {meta.node:016x}, incarnation {meta.incarnation}",
        f"run {label}{formatting.counted(meta.spec.weights, 'weight')} in "
        f"{formatting.counted(len(meta.tensors), 'tensor')}, quantum 2^{meta.quantum_log2}, mode "
        f"{printable(meta.mode)}, fingerprint {meta.fingerprint}",
        f"replica digest {meta.digest:016x} after {_applied(meta)}:",
        *(
            f"  {row.node:016x} incarnation {row.incarnation}: {formatting.counted(row.sequence, 'update')}, "
            f"{formatting.counted(row.mini_batch, 'step')}, "
            f"digest {row.digest:016x}"
            for row in meta.rows
            if not is_ring(row)  # nobody's own
        ),
        f"updates kept for peers: {formatting.size(meta.tail_bytes)}",
        _trainer_line(meta),
        "tensors:",
        *(f"  {printable(name)} {list(shape)}" for name, shape in meta.tensors),
    ]
    return "\n".join(lines)


def _trainer_line(meta: CheckpointMeta) -> str:
    trainer = meta.trainer
    if trainer is None:
        return "trainer: none was attached"
    arrays = ", ".join(f"{printable(name)} {dtype} {list(shape)}" for name, dtype, shape in trainer.arrays)
    words = f", says {printable(trainer.text)}" if trainer.text else ""
    return f"trainer: residual after own update {trainer.sequence:,}; keeps {arrays or 'nothing'}{words}"


def _applied(meta: CheckpointMeta) -> str:
    return formatting.counted(_updates(meta), unit_of(meta.rows))


def _updates(meta: CheckpointMeta) -> int:
    """Of all origins; in a dense ring, which has none, rounds."""
    return sum(map(count_applied, meta.rows))


def _time(meta: CheckpointMeta) -> str:
    return datetime.fromtimestamp(meta.written_at).astimezone().isoformat(" ", "seconds")
