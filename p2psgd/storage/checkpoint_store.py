"""The checkpoints of a node: numbered files in one folder, of which the newest two whole ones are kept."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from p2psgd.base.errors import CheckpointError, CheckpointUnreadable, words_of
from p2psgd.core.update_log import Tail, UnreadableTailError
from p2psgd.storage.checkpoint import (
    Checkpoint,
    CheckpointMeta,
    is_whole,
    read_checkpoint,
    read_meta,
    write_checkpoint,
)
from p2psgd.storage.files import FRESH_SUFFIX, make_directory, numbered, sync_folder
from p2psgd.wire import codec

KEPT: Final = 2  # the newest, and the one before it should the newest be damaged
_PREFIX: Final = "checkpoint-"
_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: a checkpoint is on disk. `kept` describes all that are kept now, it included;
    `warning` says what had to be left out of it, empty if nothing.
    """

    number: int
    bytes: int
    kept: list[CheckpointMeta]
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the store; `fault` says why it cannot be used, empty if it is whole."""

    number: int
    path: Path
    bytes: int
    meta: CheckpointMeta | None
    fault: str


class CheckpointStore:
    """The checkpoints in `folder`, which is made with the first one. Not safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[int] = set()

    def numbers(self) -> list[int]:
        """Return the numbers of all checkpoints, ascending, damaged ones included; CheckpointUnreadable if
        the folder cannot be looked into.
        """
        try:
            return numbered(self.folder, _PREFIX, _SUFFIX)
        except OSError as error:
            words = f"cannot look for checkpoints in {self.folder}: {words_of(error)}"
            raise CheckpointUnreadable(words) from None

    def path(self, number: int) -> Path:
        """Return the path of the checkpoint of that number."""
        return self.folder / f"{_PREFIX}{number:08d}{_SUFFIX}"

    def write(self, checkpoint: Checkpoint) -> Written:
        """Write another checkpoint, then remove what is older than the newest two whole ones.

        CheckpointError with a sentence if it cannot be written, or does not have the digest that it says: the
        former ones then stay. Frames that cannot be read or have changed are left out, with those of the same
        origin that came before them.
        """
        if codec.digest_coordinates(checkpoint.coordinates, checkpoint.spec.key) != checkpoint.digest:
            words = "the weights in memory differ from what was applied: no checkpoint is written of them"
            raise CheckpointError(words)
        numbers = self.numbers()
        number = numbers[-1] + 1 if numbers else 1
        path = self.path(number)
        try:
            make_directory(self.folder)
            warning = _write_what_is_whole(path, checkpoint)
            size = path.stat().st_size
        except OSError as error:
            words = f"the checkpoint {path} cannot be written: {words_of(error)}"
            stays = "; the one before it stays" if set(numbers) - self._damaged else ""
            raise CheckpointError(f"{words}{stays}") from None
        kept = [old for old in (*numbers, number) if old not in self._damaged][-KEPT:]
        with contextlib.suppress(OSError, CheckpointError):  # tried again after the next one
            self._tidy(kept)
        return Written(number, size, self._describe(kept), warning)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Read the newest checkpoint that is whole and can be read, with a warning for each newer one, and
        for what of it is damaged. CheckpointUnreadable if the folder cannot be looked into.
        """
        warnings: list[str] = []
        for number in reversed(self.numbers()):
            try:
                found = read_checkpoint(self.path(number))
            except CheckpointError as error:
                if not isinstance(error, CheckpointUnreadable):
                    self._damaged.add(number)
                warnings.append(f"checkpoint {self.path(number)} cannot be used: {error}")
            else:
                if found.warning:
                    warnings.append(f"checkpoint {self.path(number)} is used, but {found.warning}")
                return found, warnings
        return None, warnings

    def entries(self) -> list[Entry]:
        """Return all checkpoints, ascending, each read whole to verify it."""
        return [entry for number in self.numbers() if (entry := self.entry(number)) is not None]

    def entry(self, number: int) -> Entry | None:
        """Return the checkpoint of that number, None if there is none, or a running node has just
        removed it.
        """
        path, meta, fault = self.path(number), None, ""
        try:
            size = path.stat().st_size
            meta = read_meta(path)
            read_checkpoint(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be looked at: {words_of(error)}") from None
        except CheckpointError as error:
            fault = str(error)
        return Entry(number, path, size, meta, fault) if path.exists() else None

    def _tidy(self, kept: list[int]) -> None:
        for number in set(self.numbers()) - set(kept):
            self.path(number).unlink(missing_ok=True)
        for stray in self.folder.glob(f".{_PREFIX}*{FRESH_SUFFIX}"):  # of a process that was killed
            stray.unlink(missing_ok=True)
        sync_folder(self.folder)

    def _describe(self, numbers: list[int]) -> list[CheckpointMeta]:
        """Return the descriptions of those checkpoints that can be read."""
        found = []
        for number in numbers:
            with contextlib.suppress(CheckpointError):
                found.append(read_meta(self.path(number)))
        return found


def _write_what_is_whole(path: Path, checkpoint: Checkpoint) -> str:
    """Write a checkpoint, without those parts of the tail that are damaged; return a warning if there were
    any.
    """
    try:
        write_checkpoint(path, checkpoint)
        return ""
    except UnreadableTailError as error:
        fault = error
    weights, whole = checkpoint.spec.coordinates, checkpoint.tail
    tail = whole if isinstance(whole, Tail) else Tail.of(whole)
    rest = tail.readable(lambda frame: is_whole(frame, weights))
    try:
        write_checkpoint(path, replace(checkpoint, tail=rest))
    except UnreadableTailError:  # a disk that gives a frame only now and then
        rest = Tail([])
        write_checkpoint(path, replace(checkpoint, tail=rest))
    words = (
        f"the checkpoint {path} is whole, but lacks {len(tail) - len(rest)} of the log's {len(tail)} updates"
    )
    return f"{words}: {fault}"
