"""What a local run says of its recording once the daemon that wrote it has stopped.

What a daemon said last may be less than its file holds, and more where it was killed or the disk failed: then
the file itself is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from p2psgd.errors import UsageError
from p2psgd.ops import numerals
from p2psgd.ops.figures import whole
from p2psgd.ops.recording import describe_recording


class Recorded(NamedTuple):
    """The recording as a node's status has it, with the counts of the file, and what to say beside them."""

    recording: Mapping[str, Any] | None
    words: str = ""


def look_at_recording(path: Path, recording: Mapping[str, Any] | None, *, lost: str | None) -> Recorded:
    """`path`: as asked for; `recording`: as last told by the daemon; `lost`: the daemon's name if it was."""
    if recording is not None:
        path = Path(recording["file"])
        size = path.stat().st_size if path.exists() else 0
        if lost is None and size == recording["bytes"]:
            return Recorded(recording)
    try:
        found = describe_recording(path)
    except UsageError as error:  # RecordingError among them
        return Recorded(recording, str(error) if lost is None else f"{lost} was lost: {error}")
    counts = {"file": str(path), "updates": found["total"]["updates"], "bytes": found["bytes"]}
    recorded = {"note": "", **(recording or {}), **counts}
    missing = whole(recording or {}, "updates") - counts["updates"]
    if lost is None and missing <= 0 and not found["fault"]:
        return Recorded(recorded)
    trouble = (
        f"the recording {path} is not whole: it" if lost is None else f"{lost} was lost; the recording {path}"
    )
    words = f"holds {numerals.counted(counts['updates'], 'update')} in {numerals.size(counts['bytes'])}"
    fault = f"; {found['fault']}" if found["fault"] else ""
    return Recorded(recorded, f"{trouble} {words}{fault}")
