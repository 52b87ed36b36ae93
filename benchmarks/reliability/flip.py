"""A coordinate of a real daemon's replica is changed in its memory, behind its back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines, paced, start_all
from benchmarks.reliability.trainer import STILL, first_weights

WEIGHTS: Final = 200_000
FAILURE_TIMEOUT_S: Final = 1.0
OPTIONS: Final = ("--failure-timeout", f"{FAILURE_TIMEOUT_S:g}")
WANTED_S: Final = (12 + 60 / 25) * FAILURE_TIMEOUT_S  # from scrub to scrub, and 60 ticks for all of the next
PATTERN_WEIGHTS: Final = 4096
CHANGED: Final = WEIGHTS - 1000  # never changed by training
BIT: Final = 1 << 12


def run(directory: Path) -> Report:
    report = Report()
    trainer = paced(10, WEIGHTS, 200)
    with machines(3, directory=directory / "flip", options=OPTIONS, trainer=trainer) as (_, nodes):
        start_all(nodes)
        node = nodes[0]
        node.first("checkpoint", since=0.0)
        time.sleep(5 * FAILURE_TIMEOUT_S)  # neither scrub nor checkpoint is near
        began = time.time()
        flip(node)
        quarantine = node.first("quarantine", since=began)
        mended = node.first("mended", since=quarantine["at"])
        ready = node.first("ready", since=quarantine["at"])
        found_s = quarantine["at"] - began
        report.add(
            "a bit of the replica flips in a daemon's memory: found",
            f"after {found_s:.1f} s at a failure timeout of {FAILURE_TIMEOUT_S:g} s",
            f"within {WANTED_S:.1f} s",
            found_s <= WANTED_S,
        )
        healed = np.frombuffer(node.daemon.replica()[1], np.int32)[CHANGED] == expected()[CHANGED]
        report.add(
            "repaired from its checkpoint and its log",
            f"{'right' if healed else 'still wrong'}, ready {ready['at'] - quarantine['at']:.1f} s later",
            "right",
            bool(healed),
        )
        said = [event["words"] for event in (*node.events("quarantine", since=began), mended, ready)]
        said += [event["words"] for event in node.events("alarm", since=began)]
        named = any(re.search(rf"\b{CHANGED}\b", words) for words in said)
        report.add("the weight is named", "yes" if named else "no", "yes", named)
        report.details |= {"found_s": found_s, "said": said, "events": node.timeline(began)}
    return report


def expected() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The coordinates that all began with; the last of them stay so."""
    return np.round(first_weights(WEIGHTS) * 2.0**20).astype(np.int32)


def flip(node: Machine) -> None:
    """Change one coordinate in whichever copy is the replica."""
    assert CHANGED >= WEIGHTS - WEIGHTS // STILL
    start = WEIGHTS - PATTERN_WEIGHTS
    pattern = expected()[start:].tobytes()
    wrong = int(expected()[CHANGED]) ^ BIT
    with Path(f"/proc/{node.pid()}/mem").open("r+b", buffering=0) as memory:
        for address in find(node.pid(), pattern):
            place = address + 4 * (CHANGED - start)
            memory.seek(place)
            was = memory.read(4)
            memory.seek(place)
            memory.write(wrong.to_bytes(4, "little", signed=True))
            if np.frombuffer(node.daemon.replica()[1], np.int32)[CHANGED] == wrong:
                return
            memory.seek(place)  # another copy: the initial weights, or a checkpoint being written
            memory.write(was)
    raise AssertionError("the replica was not found in the daemon's memory")


def find(pid: int, pattern: bytes) -> Iterator[int]:
    """Where in the writable memory of a process these bytes are."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            region = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if region is None:
                continue
            begin, end = int(region[1], 16), int(region[2], 16)
            memory.seek(begin)
            try:
                content = memory.read(end - begin)
            except OSError:  # such as a device
                continue
            place = content.find(pattern)
            while place >= 0:
                yield begin + place
                place = content.find(pattern, place + 1)
