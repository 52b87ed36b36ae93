"""Real nodes that share out shards from a real S3 server, while nodes come and go and a store fails."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.data.index import make_list
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.data.store_server import FaultyProxy, environment
from tests.node.test_node import Place

pytestmark = pytest.mark.long

SHARDS, SAMPLES, EPOCHS = 16, 64, 2
SCRIPT = """
import fcntl, json, os, sys, time
import numpy as np
import p2psgd
from p2psgd.data.assignment import Turn

url, log, gate, told = sys.argv[1:]
take = Turn.take

def take_after_the_others(turn, mine):  # so no two reach for one shard before either has heard of the other
    with open(told, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        for line in file:
            node, steps = json.loads(line)
            while node != link.node_id and link.peer_steps.get(node, 0) < steps:
                link.wait(0.05)
                link.receive()
        if deal := take(turn, mine):
            for _ in range(2):  # who has heard any of the second has heard all of the first
                link.send(np.full(8, 0.001, np.float32), threshold=100)
            file.write(json.dumps([link.node_id, link.steps]) + chr(10))
        return deal

Turn.take = take_after_the_others
data = p2psgd.data.Shards(url)
with p2psgd.attach(np.zeros(8, np.float32), shards=data.list) as link, open(log, "a", buffering=1) as used:
    assert link.weights.shape == link.residual.shape == (8,)
    for done, batch in enumerate(data.batches(link, 16, epochs=2, lease_s=10.0), 1):
        link.receive()
        assert link.send(np.full(8, 0.001, np.float32), threshold=100) == 8
        print(*batch["number"].tolist(), file=used)
        time.sleep(0.02)
        while done == 6 and not os.path.exists(gate):  # in the middle of its second shard
            link.wait(0.05)
            link.receive()
"""


def numbers(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split()] if log.exists() else []


def trainer_of(daemon: Daemon) -> dict[str, Any]:
    return dict((daemon.status() or {}).get("trainer") or {})


def test_every_shard_is_used_in_every_epoch_while_a_node_joins_and_another_dies(
    bucket: Any, tmp_path: Path
) -> None:
    for shard in range(SHARDS):
        bucket.save(f"{shard:02}.npz", number=np.arange(shard * SAMPLES, (shard + 1) * SAMPLES))
    make_list(bucket.url)
    script, place = tmp_path / "script.py", Place(tmp_path, 3)
    script.write_text(SCRIPT)
    gate, logs = tmp_path / "gate", [tmp_path / f"used-{number}" for number in range(3)]

    def start(number: int) -> Daemon:
        words = [sys.executable, script, bucket.url, logs[number], gate, tmp_path / "told"]
        return place.start(number, "--bootstrap-expect", "2", "--trainer", " ".join(map(str, words)))

    with all_stopped([start(0), start(1)]) as daemons:
        until(lambda: min(len(numbers(log)) for log in logs[:2]) > SAMPLES, "both are at work")
        daemons.append(start(2))
        until(lambda: len(numbers(logs[2])) > SAMPLES, "and the joiner")
        daemons[1].kill()
        gate.touch()
        until(lambda: daemons[0].finished() and daemons[2].finished(), "all are through")
        assert_replicas_identical([daemons[0], daemons[2]])
        run = (daemons[0].status() or {})["run"]
        assert (run["weights"], run["tensors"], run["shards"]) == (8, 1, SHARDS), "the model's, and beside it"
    times = Counter(number for log in logs for number in numbers(log))
    assert sorted(times) == list(range(SHARDS * SAMPLES))
    assert min(times.values()) >= EPOCHS
    # Of the two shards that the dead node held, it had begun one, and told nobody that it was through.
    begun = Counter(number // SAMPLES for number in numbers(logs[1]))
    (half,) = (shard for shard, count in begun.items() if count % SAMPLES)
    assert {number // SAMPLES for number, count in times.items() if count > EPOCHS} == {half}
    assert max(times.values()) == EPOCHS + 1


def test_a_store_that_stalls_and_fails_holds_up_its_own_trainer_alone(
    bucket: Any, proxy: FaultyProxy, server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(Path("p2psgd/recipes/dataset_files/digits.npz")) as digits:
        for part, count in (("train", 8), ("test", 2)):
            pieces = [np.array_split(digits[f"{name}_{part}"], count) for name in "xy"]
            for number, (x, y) in enumerate(zip(*pieces, strict=True)):
                bucket.save(f"{part}-{number}.npz", **{f"x_{part}": x, f"y_{part}": y})
    make_list(bucket.url)
    recipe = tmp_path / "streamed.toml"
    recipe.write_text(
        f'name = "streamed"\ndata = "{bucket.url}"\nhidden = [32]\nbatch = 32\nepochs = 60\n'
        "learning_rate = 0.1\nhold_epochs = 20.0\nwarm_start = 0\ntau = 0.03\n"
    )
    place = Place(tmp_path, 2)
    start = [place.start(0, "--trainer", trainer(str(recipe)))]
    proxy.fault, proxy.word = "stall", "train-"
    for name, value in environment(server).items():  # of the other node, whose store does not fail
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with all_stopped(start) as daemons:
        first = daemons[0]
        until(
            lambda: f".npz is being fetched from {bucket.url}: waited " in trainer_of(first).get("waits", ""),
            "its status says what it waits for",
        )
        daemons.append(second := place.start(1, "--trainer", trainer(str(recipe))))
        until(lambda: trainer_of(second).get("samples", 0) > 3000, "the other one trains on")
        os.kill(trainer_of(second)["pid"], signal.SIGSTOP)  # so that the run is not over before the crash
        assert trainer_of(first)["steps"] == 0
        proxy.fault = "gone"
        crash = until(lambda: trainer_of(first).get("crash"), "its trainer ends")
        assert crash.startswith(
            f"the trainer crashed (exit code 75): the data store {bucket.url} does not give"
        )
        assert crash.endswith("npz: there is no such file")
        assert first.process.poll() is None
        proxy.fault = ""
        os.kill(trainer_of(second)["pid"], signal.SIGCONT)
        until(lambda: first.finished() and second.finished(), "it was started again, and all are through")
        assert_replicas_identical(daemons)
        assert all(trainer_of(daemon)["test_accuracy"] > 0.8 for daemon in daemons)
