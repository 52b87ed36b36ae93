"""Scripts with different seeds: the node with rank 0 gives the first weights. Real daemons and trainers."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests import DEADLINE_S
from tests.cli.local.run import Run
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, until
from tests.ports import free_ports
from tests.torch.needed import torch
from tests.wide import widely

pytestmark = pytest.mark.long

STEPS = 20
# In its first life the first node's trainer stops after some of its weights: it kills itself, or waits for
# the end of its daemon.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
import p2psgd.torch
from p2psgd.client.link import Link

folder, payload, initial, cut = Path(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
torch.manual_seed(1 if initial == "same" else os.getpid())
model = torch.nn.Linear(300, 10)
mine = {name: each.detach().clone() for name, each in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
given = []


def cutting(give):
    def instead(link, *arguments):
        given.append(1)
        if len(given) > (5 if payload in ("async", "sparse") else 1) and not (folder / "cut").exists():
            (folder / "cut").touch()
            if cut == "trainer":
                os.kill(os.getpid(), signal.SIGKILL)
            daemon = os.getppid()
            while os.getppid() == daemon:
                time.sleep(0.1)
            os._exit(1)
        give(link, *arguments)

    return instead


options = {} if payload == "async" else {"mode": "ring", "payload": payload}
if cut not in ("none", "late"):
    Link._begin_at, begin_dense = cutting(Link._begin_at), cutting(Link._begin_dense)
    Link._begin_dense = lambda link, change: (Link._plain if change is None else begin_dense)(link, change)
if cut == "late":  # another node comes while the first one gives the very last of its weights
    begin = Link._begin_dense

    def late(link, change):
        if change is not None and not abs(change[1:]).max() and not (folder / "last").exists():
            (folder / "last").touch()
            while not (folder / "come").exists():
                time.sleep(0.1)
        if change is not None:
            given.append(1)
        begin(link, change)

    Link._begin_dense = late
with p2psgd.torch.attach(model, optimizer, initial=initial, **options) as link:
    if given:
        torch.save(mine, folder / "mine.pt")
    while link.steps < 20 and not link.stopping:
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
""".replace("if cut not", "Link._plain = Link._begin_dense\nif cut not")


def command(folder: Path, payload: str, initial: str = "first", *, cut: str = "none") -> str:
    (folder / "train.py").write_text(SCRIPT)
    return shlex.join([sys.executable, str(folder / "train.py"), str(folder), payload, initial, cut])


def check(found: dict[str, np.ndarray], folder: Path, *, margin: float = 5e-3) -> None:
    """Check that these are the weights of the first node's script; other seeds differ by up to 0.1."""
    for name, values in torch.load(folder / "mine.pt").items():
        np.testing.assert_allclose(found[name], values.numpy(), atol=margin)


@pytest.mark.parametrize("payload", widely(["sparse"], ["async", "dense-float16"]))
def test_all_nodes_begin_with_the_weights_of_the_first_though_its_trainer_is_killed_as_it_gives_them(
    tmp_path: Path, payload: str
) -> None:
    weights = tmp_path / "weights.npz"
    trainer = command(tmp_path, payload, cut="trainer")
    run = Run(tmp_path, "-n", "3", "--output", "all", "--trainer", trainer, "--weights", str(weights))
    try:
        assert run.ends(DEADLINE_S) == ExitCode.OK, run.output
    finally:
        run.close()
    assert (tmp_path / "cut").exists()
    assert "waiting for the first weights, those of the node with rank 0" in run.output
    report = run.report()
    assert report["replicas_identical"]
    assert [node["steps"] for node in report["per_node"]] == [STEPS] * 3
    check(np.load(weights), tmp_path)


class Nodes:
    """Nodes of one list, that run this trainer."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.ports = free_ports(nodes)
        self.hosts = folder / "hosts.txt"
        self.hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in self.ports))
        self.daemons: list[Daemon] = []

    def start(self, number: int, trainer: str, *options: str) -> Daemon:
        life = len(self.daemons)
        daemon = Daemon(
            self.folder / f"n{number}",
            *("--peers", str(self.hosts), "--listen", f"127.0.0.1:{self.ports[number]}"),
            *("--failure-timeout", "1", "--trainer", trainer, *options),
            log=self.folder / f"{life}-n{number}.log",
        )
        self.daemons.append(daemon)
        return daemon


@pytest.mark.parametrize(
    ("payload", "lost"),
    widely([("async", True)], [("dense", False), ("async", False), ("dense", True), ("sparse", True)]),
)
def test_a_first_node_that_is_killed_while_it_gives_its_weights_goes_on_and_a_late_node_gets_them(
    tmp_path: Path, payload: str, lost: bool
) -> None:
    nodes = Nodes(tmp_path, 4)
    with all_stopped(nodes.daemons):
        trainer = command(tmp_path, payload, cut="daemon")
        first, *others = (nodes.start(number, trainer) for number in range(3))
        until((tmp_path / "cut").exists, "the first node gives its weights")
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait(DEADLINE_S)
        if lost:
            shutil.rmtree(first.state)
        again = nodes.start(0, trainer)
        for each in [again, *others]:
            until(each.finished, "all have trained")
        late = nodes.start(3, trainer)
        until(late.finished, "the late node has trained")
        assert_replicas_identical([again, *others, late])
        _, replica = late.replica()
    assert "waiting for the first weights" not in late.words(), "they were there when it came"
    if payload == "dense":
        flat = np.frombuffer(replica, np.float32)
    else:
        flat = np.frombuffer(replica, np.int32) * np.float32(2.0**-20)
    check({"weight": flat[:3000].reshape(10, 300), "bias": flat[3000:]}, tmp_path, margin=1e-2)


def test_a_node_that_comes_in_the_last_round_of_a_dense_ring_changes_no_first_weight(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    with all_stopped(nodes.daemons):
        trainer = command(tmp_path, "dense", cut="late")
        both = [nodes.start(number, trainer) for number in range(2)]
        until((tmp_path / "last").exists, "the first node gives its last weight")
        third = nodes.start(2, trainer)
        until(lambda: "waiting for the first weights" in third.words(), "the third waits")
        (tmp_path / "come").touch()
        for each in [*both, third]:
            until(each.finished, "all have trained")
        assert_replicas_identical([*both, third])
        flat = np.frombuffer(third.replica()[1], np.float32)
    check({"weight": flat[:3000].reshape(10, 300), "bias": flat[3000:]}, tmp_path, margin=1e-2)


PEER = """
import sys, time
import numpy as np
import p2psgd
from p2psgd.client.first_weights import common_start

start = common_start({"weight": np.ones((10, 300), np.float32), "bias": np.ones(10, np.float32)}, 2.0**-20)
with p2psgd.attach(start) as link:
    change = np.zeros(3010, np.float32)
    change[0] = -1.0
    link.send(change, threshold=900_000)
    while not link.stopping:
        link.wait(1)
"""


def test_updates_of_others_that_come_before_those_of_the_first_node_let_nobody_begin(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    nodes = Nodes(tmp_path, 3)
    with all_stopped(nodes.daemons):
        nodes.start(1, shlex.join([sys.executable, str(tmp_path / "peer.py")]))
        waits = nodes.start(2, command(tmp_path, "async"))

        def moved() -> bool:
            status = waits.status()
            return status is not None and bool((status["updates"] or {}).get("applied"))

        until(moved, "the update of the other node is there")
        until(lambda: "waiting for the first weights" in waits.words(), "it waits")
        time.sleep(1)  # in which it would make many steps
        status = waits.status()
        assert status is not None
        assert status["trainer"]["steps"] == 0
        assert "first weights" in status["trainer"]["waits"]


FROZEN = """
import os
import torch
import p2psgd.torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3)).to(
    memory_format=torch.channels_last
)
model[1].requires_grad_(False)
before = model[0].weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with p2psgd.torch.attach(model, optimizer, initial="first", alone=True):
    print("largest change", float((model[0].weight - before).abs().max()))
before[0, 0, 0, 0] = 3.5
model[0].weight.data.copy_(before)
p2psgd.torch.attach(model, optimizer, initial="first", alone=True)
"""


def test_any_memory_format_is_given_and_what_is_not_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FROZEN)
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert float(ran.stdout.split()[-1]) < 1e-5, ran.stdout + ran.stderr
    assert (
        "rank 0 gives no frozen parameters to others, and this model has 2, such as '1.weight'" in ran.stderr
    )
    assert "the very first weight of the model is 3.5" in ran.stderr.splitlines()[-1]


def test_nodes_of_which_one_brings_its_own_weights_are_two_runs_and_learn_what_to_do(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    with all_stopped(nodes.daemons):
        nodes.start(0, command(tmp_path, "async"))
        other = nodes.start(1, command(tmp_path, "async", "same"))
        until(lambda: "train different runs" in other.words(), "the refusal")
    assert "torch.manual_seed" in other.words()
    assert 'initial="first") on all nodes' in other.words()


def test_a_node_without_a_rank_refuses_to_take_first_weights(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    nodes.hosts.write_text(f"127.0.0.1:{nodes.ports[1]}\n")
    with all_stopped(nodes.daemons):
        only = nodes.start(0, command(tmp_path, "async"), "--bootstrap-expect", "1")
        until(lambda: "does not know its rank" in only.words(), "the refusal")
    assert "torch.manual_seed" in only.words()


def test_a_script_that_is_asked_to_end_while_it_waits_makes_no_step(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    with all_stopped(nodes.daemons):
        waiting, _ = (nodes.start(number, command(tmp_path, "async")) for number in (1, 2))
        until(lambda: "waiting for the first weights" in waiting.words(), "it waits")
        with ControlClient(control_path(waiting.state)) as client:
            client.request("finish")
        words = "asked to end before the run has its first weights"
        until(lambda: words in waiting.words(), "it ends")
        status = waiting.status()
        assert status is not None
        assert status["trainer"]["steps"] == 0
