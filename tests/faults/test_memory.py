"""A weight changes in a real daemon's memory, as bad memory would have it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.ops.events import EventReader
from p2psgd.wire import codec
from tests.bench.reliability.machines import paced
from tests.bench.reliability.trainer import first_weights
from tests.chaos.memory import BIT, flip
from tests.daemons import Daemon, all_stopped, until
from tests.test_node import Place

WEIGHTS = 20_000
PLACE = 19_000  # never changed by this trainer


def told(daemon: Daemon, kind: str) -> list[str]:
    with EventReader(daemon.state) as events:
        return [event["words"] for event in events.kept() if event["kind"] == kind]


def mini_batches(daemon: Daemon) -> int:
    return int((daemon.status() or {})["trainer"]["mini_batches"])


@pytest.mark.timeout(120)
def test_a_node_alone_mends_itself_and_trains_on(tmp_path: Path) -> None:
    trainer = paced(50, WEIGHTS, 20)(tmp_path / "notes")
    with all_stopped([Place(tmp_path, 1).start(0, "--trainer", trainer, "--patience", "0.4")]) as [daemon]:
        run = until(daemon.run, "the run is known")
        key = int.from_bytes(bytes.fromhex(run["fingerprint"])[:8], "little")

        def replica() -> NDArray[np.int32]:
            return np.frombuffer(daemon.replica()[1], np.int32)

        def intact() -> bool:
            digest, weights = daemon.replica()
            return codec.digest_coordinates(np.frombuffer(weights, np.int32), key) == digest

        until(lambda: told(daemon, "checkpoint"), "a checkpoint is on disk")
        assert intact()
        assert flip(daemon.process.pid, replica, PLACE)
        assert not intact()
        daemon.scrub()
        [words] = until(lambda: told(daemon, "mended"), "it has mended itself")
        right = float(first_weights(WEIGHTS)[PLACE])
        wrong = (int(right * 2**20) ^ BIT) / 2**20
        assert re.fullmatch(
            r"the weights were made anew from the last checkpoint and [1-9]\d* updates since: "
            rf"\S+\[{PLACE}\] was {wrong:g} instead of {right:g}",
            words,
        ), words
        assert intact()
        made = mini_batches(daemon)
        until(lambda: mini_batches(daemon) > made + 20, "it trains on")
        assert daemon.stop() == 0
    assert len(told(daemon, "quarantine")) == 1
