"""A weight changes in a real daemon's memory, as bad memory would have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.reliability.machines import paced
from benchmarks.reliability.trainer import first_weights
from p2psgd.wire import codec
from tests.chaos.events import read
from tests.chaos.memory import BIT, flip
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place

pytestmark = pytest.mark.long
WEIGHTS = 20_000
PLACE = 19_000  # never changed by this trainer


def told(daemon: Daemon, kind: str) -> list[str]:
    return [event.words for event in read(daemon.state) if event.kind == kind]


def steps(daemon: Daemon) -> int:
    return int((daemon.status() or {})["trainer"]["steps"])


def replica(daemon: Daemon) -> NDArray[np.int32]:
    return np.frombuffer(daemon.replica()[1], np.int32)


def intact(daemon: Daemon) -> bool:
    run = daemon.run()
    assert run is not None
    key = int.from_bytes(bytes.fromhex(run["fingerprint"])[:8], "little")
    digest, weights = daemon.replica()
    return codec.digest_coordinates(np.frombuffer(weights, np.int32), key) == digest


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Daemon]:
    """A node that trains, has written a checkpoint, and is the only one of its run."""
    trainer = paced(50, WEIGHTS, 20)(tmp_path / "notes")
    with all_stopped([Place(tmp_path, 1).start(0, "--trainer", trainer, "--failure-timeout", "0.4")]) as [
        daemon
    ]:
        until(lambda: told(daemon, "checkpoint"), "a checkpoint is on disk")
        yield daemon


def test_a_node_alone_mends_itself_and_trains_on(lone: Daemon) -> None:
    assert intact(lone)
    assert flip(lone.process.pid, lambda: replica(lone), PLACE)
    assert not intact(lone)
    lone.scrub()
    [words] = until(lambda: told(lone, "mended"), "it has mended itself")
    right = float(first_weights(WEIGHTS)[PLACE])
    wrong = (int(right * 2**20) ^ BIT) / 2**20
    assert re.fullmatch(
        r"the weights were rebuilt from the last checkpoint and [1-9]\d* updates since: "
        rf"\S+\[{PLACE}\] was {wrong:g} instead of {right:g}",
        words,
    ), words
    assert intact(lone)
    made = steps(lone)
    until(lambda: steps(lone) > made + 20, "it trains on")
    assert lone.stop() == 0
    assert len(told(lone, "quarantine")) == 1


def test_without_a_checkpoint_that_can_be_read_it_ends_to_be_started_again(lone: Daemon) -> None:
    assert flip(lone.process.pid, lambda: replica(lone), PLACE)
    for path in (lone.state / "run").glob("checkpoint-*"):  # none is written any more: the weights are wrong
        with path.open("r+b") as file:
            file.seek(-7, 2)
            file.write(b"changed")
    lone.scrub()
    assert lone.process.wait(60) == 75
    words = "the weights cannot be rebuilt from the checkpoint and the log: "
    assert told(lone, "quarantine")[1:] == [f"{words}there is no checkpoint that can be used"]
    assert any("it does not have its hash" in alarm for alarm in told(lone, "alarm"))
    words = "there is no usable checkpoint; after a restart it begins anew"
    assert words in lone.words().splitlines()[-1]


def test_a_stop_whose_last_checkpoint_cannot_be_written_says_so(lone: Daemon) -> None:
    for number in range(1, 200):  # where the next ones are to be written
        (lone.state / "run" / f".checkpoint-{number:08d}.safetensors.new").mkdir(exist_ok=True)
    assert lone.stop() == 75
    last = lone.words().splitlines()[-1]
    assert "stopped, but its last checkpoint is not on disk: the checkpoint " in last
    assert last.endswith("cannot be written: is a directory; the one before it stays")
