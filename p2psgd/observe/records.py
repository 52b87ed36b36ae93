"""What a node has recorded, for people: its event log and its recording of updates."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from p2psgd import formatting
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import ExitCode, RecordingError, UsageError, words_of
from p2psgd.observe.compression import (
    ADVICE,
    SlicedCompression,
    Tally,
    describe_compression,
    describe_tally,
    facts_of,
    render_slices,
    tensor_rows,
)
from p2psgd.observe.figures import printable
from p2psgd.storage.event_log import EVENTS_NAME, KINDS, older_path, parse_event
from p2psgd.wire.recording import RecordingHeader, read_start, read_updates

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# ----------------------------------------------------------------------------
# Reading a node's event log, for `p2psgd events`: of a node that runs as well as of one that has ended.


POLL_S: Final = 0.2
LINE_BYTES_MAX: Final = 64 * 1024  # a longer line is no event of ours
KIND_WIDTH: Final = 14

Event = dict[str, Any]


class EventReader:
    """The events in the state directory `state`; UsageError if there are none or they cannot be read."""

    def __init__(self, state: Path) -> None:
        self._path = state / EVENTS_NAME
        self._newest = self._open()
        self._rest = b""  # of a line that has only begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._newest.close()

    def kept(self) -> list[Event]:
        """All that are kept now, oldest first; to be called once, before `follow`."""
        older = b""
        # The newest was opened before the older one is: else a file that fills up now could be missed.
        with contextlib.suppress(OSError), older_path(self._path).open("rb") as file:
            if not os.path.sameopenfile(file.fileno(), self._newest.fileno()):
                older = file.read()
        return [*_parse(older.split(b"\n")), *self._read()]

    def follow(self) -> Iterator[Event]:
        """Those that come after, for ever."""
        while True:
            replaced = self._is_replaced()  # looked at first: nothing is added to a file after that
            yield from self._read()
            if replaced:
                self._newest.close()
                self._newest, self._rest = self._open(), b""
            else:
                time.sleep(POLL_S)

    def _read(self) -> Iterator[Event]:
        *lines, rest = (self._rest + self._newest.read()).split(b"\n")
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return _parse(lines)

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            raise UsageError(
                f"no events in {self._path.parent}: name that of a node that has run with --state"
            ) from None
        except OSError as error:
            reason = words_of(error)
            raise UsageError(f"cannot read {self._path}: {reason}", ExitCode.PERMISSION) from None

    def _is_replaced(self) -> bool:
        """It was full, and the daemon has begun another."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._newest.fileno()))
        except OSError:
            return False


def select_events(events: list[Event], *, kind: str | None, last: int | None) -> list[Event]:
    """The last so many of one kind; None: of any kind, all. UsageError if there is no such kind."""
    kinds = KINDS | {event["kind"] for event in events}  # those of a later version as well
    if kind is not None and kind not in kinds:
        raise UsageError(
            f"no event is of kind {kind!r:.40}; there are: {', '.join(map(printable, sorted(kinds)))}"
        )
    chosen = [event for event in events if kind in (None, event["kind"])]
    return chosen if last is None else chosen[-last:]


def render_event(event: Event) -> str:
    """One line for people: time, kind, whom it is about, the sentence."""
    who = f"{printable(event['node'])}: " if event.get("node", "") not in event["words"] else ""
    when = printable(event["time"])[:19].replace("T", " ")
    return f"{when}Z  {printable(event['kind']):<{KIND_WIDTH}}  {who}{printable(event['words'])}"


def _parse(lines: list[bytes]) -> Iterator[Event]:
    return filter(None, map(parse_event, lines))


# ----------------------------------------------------------------------------
# What a recording holds, as plain data and as text: `p2psgd recording`.


class _CountedFile(io.BufferedReader):
    """Knows how many bytes were read from it, which a pipe cannot tell."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer)
        self.count += count
        return count


def describe_recording(path: Path) -> dict[str, Any]:
    """Read a whole recording. `fault` says where and why it cannot be read on, empty at its proper end.

    UsageError if there is no such file, RecordingError if it does not begin like a recording.
    """
    try:
        with _CountedFile(io.FileIO(path)) as file:
            header = read_start(file)
            _check_fingerprint(header)
            compression, origins, fault = SlicedCompression(header.tensors), set[Origin](), ""
            try:
                for update in read_updates(file, header.weights):
                    origin = Origin(update.header.node, update.header.incarnation)
                    origins.add(origin)
                    compression.count(
                        origin=origin,
                        mini_batch=update.header.mini_batch,
                        step=update.header.step,
                        words=update.words,
                        payload=update.payload,
                    )
            except RecordingError as error:
                fault = str(error)
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else file.count
    except OSError as error:
        words = words_of(error)
        raise UsageError(f"the recording {path} cannot be read: {words}", ExitCode.USAGE) from None
    total, slices = compression.total(), compression.slices
    latest = Tally.empty(len(header.tensors))
    for part in slices[-2:]:  # the last slice alone may be a few updates
        latest.add(part)
    return {
        "file": str(path),
        "bytes": size,
        "run": {
            "fingerprint": header.fingerprint.hex(),
            "label": header.label,
            "mode": header.mode,
            "weights": header.weights,
            "quantum_log2": header.quantum_log2,
        },
        "origins": len(origins),
        **describe_compression(total, latest, header.tensors),
        "slices": [describe_tally(part, header.weights) for part in slices],
        "fault": fault,
    }


def render_recording(description: Mapping[str, Any]) -> str:
    """The description as lines of text, without a newline at the end."""
    run, total = description["run"], description["total"]
    label = f"{printable(run['label'])}: " if run["label"] else ""
    updates = formatting.counted(total["updates"], "update")
    origins = formatting.counted(description["origins"], "node")
    lines = [
        f"{printable(description['file'])}: {formatting.size(description['bytes'])}, {updates} of {origins}",
        f"run {label}{formatting.counted(run['weights'], 'weight')} in "
        f"{formatting.counted(description['tensors_total'], 'tensor')}, quantum 2^{run['quantum_log2']}, "
        f"fingerprint {run['fingerprint']}",
    ]
    if total["updates"]:
        lines += [*facts_of("all updates", total), ""]
        lines += ["from the first update to the last, bits per index:", *render_slices(description["slices"])]
        lines += ["", *tensor_rows(description), "", ADVICE]
    return "\n".join(lines)


def _check_fingerprint(header: RecordingHeader) -> None:
    fields = (header.tensors, header.quantum_log2, header.mode, header.label)
    spec = RunSpec(*fields, header.initial, header.two_nodes)
    if spec.fingerprint != header.fingerprint:
        raise RecordingError("the recording's header does not fit the fingerprint in it")
