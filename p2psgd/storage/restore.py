"""Restore: a node that starts again reads its newest whole checkpoint and its own updates beyond it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, UsageError, cannot, words_of
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.storage.checkpoint import Checkpoint
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.files import sync_folder
from p2psgd.storage.update_wal import WalError, another_run, own_paths, read_own
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.update import UpdateHeader, decode_update, parse_update

_ABANDONED: Final = re.compile(r"abandoned-([0-9]{1,9})")


@dataclass(frozen=True, slots=True, eq=False)
class FoundOnDisk:
    """The state that a restarted node has found. `checkpoint`, if there is one, has a residual that does not
    hold any more what was sent since then.

    `own` are UPDATE frames of this node's former incarnations beyond it, of each incarnation in order and
    without a hole: apply them like a peer's. `previous` is the last of those incarnations, None if nothing of
    it can be read. `warnings` are sentences for people; `store` knows now which checkpoints are damaged.
    """

    store: CheckpointStore
    checkpoint: Checkpoint | None
    own: list[bytes]
    previous: Origin | None
    warnings: list[str]


def restore(folder: Path, spec: RunSpec | None) -> FoundOnDisk | None:
    """Read what a former incarnation of this node left in `folder`, None if that is nothing.

    `spec` None: take the run from the checkpoint; without a checkpoint, own updates are of no use and not
    read. UsageError if the content is of another run, or cannot be read.
    """
    store = CheckpointStore(folder)
    checkpoint, warnings = store.latest()
    if spec is None and checkpoint is None:
        return FoundOnDisk(store, None, [], None, warnings) if warnings else None
    if spec is None:
        assert checkpoint is not None
        spec = checkpoint.spec
    if checkpoint is not None and checkpoint.spec.fingerprint != spec.fingerprint:
        other = checkpoint.spec
        raise another_run(folder / "checkpoint", other, spec)
    applied: dict[Origin, int] = {}
    if checkpoint is not None:
        applied = {Origin(row.node, row.incarnation): row.sequence for row in checkpoint.rows}
    previous = None if checkpoint is None else checkpoint.origin
    own: list[bytes] = []
    sent: dict[tuple[Origin, int], bytes] = {} if checkpoint is None else _own_of_tail(checkpoint)
    beyond_hole = 0
    for header, frame in _read_all_own(folder, spec, warnings):
        previous = origin = Origin(header.node, header.incarnation)
        sent[origin, header.sequence] = frame
        if header.sequence == applied.get(origin, 0) + 1:
            own.append(frame)
            applied[origin] = header.sequence
        elif header.sequence > applied.get(origin, 0):
            beyond_hole += 1
    if beyond_hole:
        warnings.append(
            f"{beyond_hole} of this node's own updates in {folder} cannot be used: others before them are "
            "missing"
        )
    if checkpoint is not None:
        _take_back(checkpoint, sent)
    elif previous is None and not warnings:
        return None
    return FoundOnDisk(store, checkpoint, own, previous, warnings)


def abandon(folder: Path) -> Path | None:
    """Move what is in `folder` out of the way, to abandoned-N beside it, of which only the newest is kept.

    Returns that place, None if there was nothing. In one step: a crash leaves all of it or nothing of it in
    use. UsageError if it cannot be moved.
    """
    matches = {path: _ABANDONED.fullmatch(path.name) for path in folder.parent.glob("abandoned-*")}
    found = {path: int(match[1]) for path, match in matches.items() if match}
    place = folder.with_name(f"abandoned-{max(found.values(), default=0) + 1}")
    try:
        folder.rename(place)
        sync_folder(folder.parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        words = f"cannot move {folder} out of the way, to {place}: {words_of(error)}"
        raise UsageError(words, ExitCode.PERMISSION) from None
    for older in found:
        shutil.rmtree(older, ignore_errors=True)
    return place


def _read_all_own(folder: Path, spec: RunSpec, warnings: list[str]) -> Iterator[tuple[UpdateHeader, bytes]]:
    """Read the files of own updates; a damaged one adds to the warnings."""
    try:
        paths = own_paths(folder)
    except OSError as error:
        raise cannot(f"look for this node's own updates in {folder}", error) from None
    for path in paths:
        try:
            yield from read_own(path, spec)
        except WalError as error:
            warnings.append(str(error))


def _own_of_tail(checkpoint: Checkpoint) -> dict[tuple[Origin, int], bytes]:
    """Return this node's updates among those that the checkpoint keeps for its peers."""
    found = {}
    for frame in checkpoint.tail:
        header, _ = parse_update(memoryview(frame)[PREFIX.size :], checkpoint.spec.coordinates)
        if header.node == checkpoint.origin.node:
            found[Origin(header.node, header.incarnation), header.sequence] = frame
    return found


def _take_back(checkpoint: Checkpoint, sent: Mapping[tuple[Origin, int], bytes]) -> None:
    """Take out of the residual what was sent after it was saved, as far as it is still in there: it would be
    sent twice. The residual never crosses zero: what was sent beyond it came from mini-batches whose work is
    not undone. In mode owners own updates are what others contributed, and nobody knows what was sent since:
    all of the residual is dropped if there are any.
    """
    if checkpoint.trainer is None:
        return
    meta, spec = checkpoint.describe(), checkpoint.spec
    if spec.owners:
        if not all(meta.covers(origin, sequence) for origin, sequence in sent):
            checkpoint.trainer.residual[:] = 0
        return
    for origin, sequence in sorted(sent):
        if not meta.covers(origin, sequence):
            body = memoryview(sent[origin, sequence])[PREFIX.size :]
            header, payload = parse_update(body, spec.coordinates)
            words = decode_update(header, payload, spec.coordinates)
            of_weights = words[: words.searchsorted(spec.weights << 1)]  # shard counts have no residual
            _shrink(checkpoint.trainer.residual, of_weights, header.magnitude * spec.quantum)


def _shrink(residual: NDArray[np.float32], words: NDArray[np.uint32], amount: float) -> None:
    """Move residual[i] towards zero by `amount`, at most to it, for each word `i << 1 | negative` whose sign
    it has.
    """
    index = words >> np.uint32(1)
    sign = np.where(words & np.uint32(1), np.float32(-1), np.float32(1))
    before = residual[index] * sign
    residual[index] = np.where(before > 0, np.maximum(before - np.float32(amount), 0), before) * sign
