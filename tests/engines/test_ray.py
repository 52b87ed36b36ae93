"""`p2psgd.ray.run` on a cluster of Ray's own raylets, by docs/engines/ray.md to the letter."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import safetensors.numpy

import p2psgd.ray
from p2psgd.base.errors import ExitCode, P2psgdError, UsageError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.ray.driver import FINISH_LIMIT_S, name_run
from p2psgd.ray.node import Sum, are_equal, bind_port, claim_state
from p2psgd.storage.votes import read_cluster_id
from tests.daemons import until
from tests.engines.pages import blocks_of
from tests.operations.machines import CHECKOUT

EXAMPLES: Final = CHECKOUT / "examples" / "ray"
LIMIT_S: Final = 300


class Machines:
    """The machines of a Ray cluster, and what their nodes report."""

    def __init__(self, place: Path, process: subprocess.Popen[str]) -> None:
        self._place, self._process = place, process
        self.address = self._line()
        self.raylets: dict[str, int] = {}

    def add(self) -> str:
        """Add a machine and return its name."""
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        return self.note()

    def note(self) -> str:
        """Wait for a machine and return its name."""
        name, raylet = self._line().split()
        self.raylets[name] = int(raylet)
        return name

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def status(self, machine: str) -> dict[str, Any]:
        """Return the status of a machine's node; an empty one while none answers."""
        for home in (self._place / machine).glob(".local/state/p2psgd/ray/*/state-0"):
            try:
                with ControlClient(control_path(home), timeout_s=30) as client:
                    status: dict[str, Any] = client.request("status")["status"]
                    return status
            except P2psgdError:
                pass
        return {}

    def steps(self, machine: str) -> int:
        """Return the mini-batches of a machine's node."""
        return int(self.status(machine).get("trainer", {}).get("steps", 0))

    def processes(self, machine: str) -> tuple[int, int, int]:
        """Return what changes when a machine's node or its script is started again."""
        status = self.status(machine)
        return status.get("incarnation", 0), status.get("pid", 0), status.get("trainer", {}).get("pid", 0)

    def go_on(self, machines: list[str], steps: int = 50) -> None:
        """Wait until each of these machines has made so many steps more."""
        goals = {machine: self.steps(machine) + steps for machine in machines}
        until(
            lambda: all(self.steps(machine) >= goal for machine, goal in goals.items()),
            f"mini-batches {goals}",
            timeout_s=LIMIT_S,
        )


@pytest.fixture
def needs_ray(needs: Callable[..., None]) -> None:
    needs()
    if find_spec("ray") is None:
        pytest.skip("needs Ray")


@contextmanager
def ray_machines(place: Path, number: int) -> Iterator[Machines]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.engines.ray_cluster", str(place), str(number)]
    with (place / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=CHECKOUT
        )
    try:
        machines = Machines(place, process)
        for _ in range(number):
            machines.note()
        yield machines
    finally:
        process.communicate(timeout=LIMIT_S)


@pytest.mark.long
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.timeout(1800)
def test_an_actor_and_a_raylet_are_killed_and_a_machine_comes_and_nobody_else_starts_again(
    tmp_path: Path,
) -> None:
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, tmp_path)
    with ray_machines(tmp_path, 4) as machines, (tmp_path / "output.txt").open("w+") as output:
        first, second, third, fourth = machines.raylets
        environment = {**os.environ, "RAY_ADDRESS": machines.address}
        driver = subprocess.Popen(
            [sys.executable, "run.py"], cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
        try:
            machines.go_on([first, second, third, fourth])
            before = {machine: machines.processes(machine) for machine in machines.raylets}

            steps, begin = machines.steps(second), time.monotonic()
            actor = parent_of(before[second][1])
            os.kill(actor, signal.SIGKILL)
            until(lambda: machines.processes(second)[0] > before[second][0], "a new life", timeout_s=LIMIT_S)
            machines.go_on([second])
            print(f"the node of a killed actor trains again after {time.monotonic() - begin:.1f} s")
            assert machines.steps(second) >= steps  # its state is still there
            before[second] = machines.processes(second)

            os.kill(machines.raylets[third], signal.SIGKILL)
            until(lambda: not machines.status(third), "its node ends with it", timeout_s=LIMIT_S)
            machines.go_on([first, second, fourth], 200)

            begin = time.monotonic()
            fifth = machines.add()
            machines.go_on([first, second, fourth, fifth])
            print(f"a node trains on the machine that was added after {time.monotonic() - begin:.1f} s")
            for machine in (first, second, fourth):
                assert machines.processes(machine) == before[machine], machine

            driver.send_signal(signal.SIGINT)
            assert driver.wait(LIMIT_S) == ExitCode.OK
        finally:
            driver.kill()
            driver.wait()
            print((tmp_path / "output.txt").read_text())
    words = (tmp_path / "output.txt").read_text()
    assert "identical: True" in words
    assert "all 4 identical" in words
    (weights,) = safetensors.numpy.load_file(tmp_path / "weights.safetensors").values()
    truth = np.random.default_rng(1).normal(size=100).astype(np.float32)
    assert np.abs(weights - truth).mean() < 0.05


RANKED: Final = """
import sys
import numpy as np
import p2psgd
with p2psgd.attach(np.zeros(10, np.float32)) as link:
    print(f"rank {link.rank} of {link.world_size}")
    while link.steps < 100:
        link.receive()
        link.send(np.full(10, 0.01, np.float32), threshold=1000)
if sys.argv[1:]:
    raise ValueError("this argument is wrong")
"""
CALLER: Final = """
import pathlib
import p2psgd.ray
from p2psgd.base.errors import UsageError
seen = []
def see(phase, statuses):
    seen.append((phase, statuses))
options = {"nodes": 2, "restarts": 0, "progress": see}
result = p2psgd.ray.run("ranked.py", name="again", **options)
report = result.report
print([(row["steps"], row["starts"]) for row in report["per_node"]], result.identical, report["troubles"])
print(len(seen) > 5, {status.trainer.steps for status in seen[-1][1]})
cases = {"nodes": 3, "wait_s": 40}, {"resources": {"GPU": 1}, "wait_s": 0.1}, {"script": "broken.py"}
for case in (*cases, {"state": "/proc/none"}):
    try:
        p2psgd.ray.run(**{"script": "ranked.py", **options, **case})
    except UsageError as error:
        print(f"refused: {error}")
try:
    p2psgd.ray.run("ranked.py", arguments=["wrong"], **options)
except UsageError as error:
    print(f"refused: {error}")
votes = pathlib.Path().glob("machine-*/.local/state/p2psgd/ray/ranked-*/state-0/votes.json")
(name,) = {path.parts[-3] for path in votes}
result = p2psgd.ray.run("ranked.py", name=name, **options)
print([(row["steps"], row["starts"]) for row in result.report["per_node"]], result.identical, name)
"""


@pytest.mark.long
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.timeout(1800)
def test_a_run_ends_by_itself_and_what_cannot_go_on_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ranked.py").write_text(RANKED)
    (tmp_path / "broken.py").write_text("raise KeyError('no such column')\n")
    with ray_machines(tmp_path, 2) as machines:
        done = subprocess.run(
            [sys.executable, "-c", CALLER],
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": machines.address},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith(("[(", "True", "refused"))]
    ended, seen, *refused, mended = lines  # what Ray's own processes log stands among them
    assert ended == "[(100, 1), (100, 1)] True []"
    assert seen == "True {100}"
    assert "only 2 of the 3 nodes that begin the run have found room within 40 s" in refused[0]
    assert "each asks for {'GPU': 1}, and the cluster has {'GPU': 0.0} free" in refused[1]
    assert "KeyError: 'no such column'" in refused[2]
    assert "the run needs 2 to begin: " in refused[3]
    assert "/proc/none" in refused[3]
    assert "ValueError: this argument is wrong" in refused[4]
    assert mended.startswith("[(100, 1), (100, 1)] True ranked-")  # the state of a call without name is kept
    logs = [path.read_text() for path in tmp_path.glob("machine-*/.local/state/p2psgd/ray/again/*/log.txt")]
    assert {rank for rank in (0, 1) for log in logs if f"rank {rank} of 2" in log} == {0, 1}


AGAIN: Final = """
import sys
import p2psgd.ray
name, steps, *nodes = sys.argv[1:]
result = p2psgd.ray.run("train.py", nodes=tuple(map(int, nodes)), arguments=[steps], name=name)
print("identical:", result.identical, sum(row["steps"] for row in result.report["per_node"]))
"""


class Calls:
    """Calls of `p2psgd.ray.run`, each in a process of its own."""

    def __init__(self, place: Path, machines: Machines) -> None:
        shutil.copy(EXAMPLES / "train.py", place)
        (place / "again.py").write_text(AGAIN)
        self._place, self._address = place, machines.address

    @contextmanager
    def begin(self, name: str, steps: int, nodes: tuple[int, int]) -> Iterator[subprocess.Popen[str]]:
        """Begin a call, and kill it at the end."""
        call = subprocess.Popen(
            [sys.executable, "again.py", name, str(steps), *map(str, nodes)],
            cwd=self._place,
            env={**os.environ, "RAY_ADDRESS": self._address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield call
        finally:
            call.kill()
            call.communicate()

    def whole(self, name: str, steps: int, nodes: tuple[int, int]) -> str:
        """Return what a call prints from its begin to its end."""
        with self.begin(name, steps, nodes) as call:
            words, _ = call.communicate(timeout=LIMIT_S)
        print(words)
        return words

    def states(self, name: str) -> dict[Path, int | None]:
        """Return the state directories of this name, and the run that each is of."""
        homes = self._place.glob(f"machine-*/.local/state/p2psgd/ray/{name}/*")
        return {home: read_cluster_id(home) for home in homes}


@pytest.mark.long
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.timeout(1800)
def test_a_name_is_of_one_run_and_free_at_once_when_its_driver_is_killed(tmp_path: Path) -> None:
    with ray_machines(tmp_path, 2) as machines:
        calls = Calls(tmp_path, machines)
        with calls.begin("again", 100_000, (2, 2)):
            machines.go_on([*machines.raylets])
            before = calls.states("again")
            assert "a run named 'again' is going on in this cluster: wait for its end" in calls.whole(
                "again", 100, (1, 1)
            )
        assert re.search(r"identical: True 20\d\d$", calls.whole("again", 2000, (2, 2)), re.MULTILINE)
        assert calls.states("again") == before
        assert len(set(before.values())) == 1

        shutil.rmtree(next(iter(before)))  # there is no majority any more
        with calls.begin("again", 100_000, (2, 2)) as call:
            assert call.stdout is not None
            while "a majority of view" not in (line := call.stdout.readline()):
                assert line, "it has ended"
            began = time.monotonic()
            call.send_signal(signal.SIGINT)
            assert call.stdout.read().endswith("KeyboardInterrupt\n")
            assert time.monotonic() - began < FINISH_LIMIT_S


@pytest.mark.long
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.timeout(1800)
def test_states_of_two_runs_are_one_sentence_and_one_that_comes_late_is_given_up(tmp_path: Path) -> None:
    with ray_machines(tmp_path, 2) as machines:
        calls = Calls(tmp_path, machines)
        for name, machine in zip(("one", "other"), machines.raylets, strict=True):
            calls.whole(name, 50, (1, 1))
            (state,) = calls.states(name)
            shutil.copytree(state, tmp_path / machine / ".local/state/p2psgd/ray/mixed/state-0")
        words = calls.whole("mixed", 100, (2, 2))
        assert "the states of 'mixed' are of 2 runs, which never become one: " in words
        assert all(str(home) in words for home in calls.states("mixed"))

        words = calls.whole("mixed", 500, (1, 2))
        assert "is given up: the state " in words
        assert re.search(r"identical: True 5\d\d$", words, re.MULTILINE)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_examples_stand_in_the_page() -> None:
    examples = {example.read_text().partition('"""\n\n')[2] for example in EXAMPLES.glob("*.py")}
    assert examples == set(blocks_of("ray.md", "python"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes": (4, 2)}, "nodes=(4, 2): give a number of nodes, or a least and a greatest one"),
        ({"nodes": 0}, "nodes=0: give a number"),
        ({"nodes": 2, "resources": {"CPU": 0}}, "resources={'CPU': 0}: give numbers above 0"),
        ({"nodes": 2, "restarts": -1}, "restarts=-1: give a number"),
        ({"nodes": 2, "name": "../x"}, "name='../x': give 1 to 64 letters"),
        ({"nodes": 2, "name": "ü" * 64}, "': give 1 to 64 letters"),
        ({"nodes": 2, "weights": "weights.pt"}, "weights='weights.pt': give a file *.safetensors"),
        ({"nodes": 2, "arguments": "100"}, "arguments='100': give a list of them, such as ['100']"),
        ({"nodes": 2, "arguments": b"100"}, "arguments=b'100': give a list"),
        ({"nodes": 2, "arguments": 100}, "arguments=100: give a list"),
        ({"nodes": 2, "state": "runs"}, "state='runs': give an absolute path, as it is on each machine"),
        ({"nodes": 2, "script": "none.py"}, "cannot read the script none.py: no such file or directory"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        p2psgd.ray.run(**{"script": EXAMPLES / "train.py", **arguments})
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_of_different_ends_are_equal_only_after_an_interruption() -> None:
    def of(trained: str, ended: str, *, sha: str = "r", digest: int = 1) -> Sum:
        return Sum("closure", -20, digest, True, sha, trained, ended)

    same, apart = [of("a", "7"), of("a", "8")], [of("a", "7"), of("b", "8", digest=2)]
    assert are_equal(same, interrupted=False)
    assert not are_equal(apart, interrupted=False)
    assert are_equal(apart, interrupted=True)
    assert not are_equal([*apart, of("c", "8", digest=3)], interrupted=True)
    assert not are_equal([of("a", "7"), of("b", "", digest=2)], interrupted=True)
    assert not are_equal([of("a", "7"), of("b", "8", sha="s")], interrupted=True)


def test_two_actors_of_a_machine_have_a_state_and_a_port_each(tmp_path: Path) -> None:
    (first, lock), (second, other) = claim_state(tmp_path, "call"), claim_state(tmp_path, "call")
    assert (first.name, second.name) == ("state-0", "state-1")
    os.close(lock)  # its actor has died, and the next one finds its state
    again, lock = claim_state(tmp_path, "call")
    assert again == first
    os.close(lock)
    os.close(other)
    shutil.rmtree(first)
    left, lock = claim_state(tmp_path, "call")
    assert left == second  # what is there goes on before a new node begins
    os.close(lock)
    (one, address), (two, another) = bind_port("127.0.0.1"), bind_port("127.0.0.1")
    with one, two, socket.create_server(one.getsockname()):  # as a daemon does, while its actor has the port
        assert address != another


def test_the_name_of_a_call_without_one_may_be_given_to_a_later_call() -> None:
    name = name_run(None, Path("a/my train.v2.py"))
    assert re.fullmatch("my-train-v2-[0-9a-f]{8}", name)
    assert name_run(name, Path("train.py")) == name


def test_an_actor_waits_for_those_of_an_earlier_call_to_end(tmp_path: Path) -> None:
    home, lock = claim_state(tmp_path, "first")
    with pytest.raises(UsageError) as raised:
        claim_state(tmp_path, "other", limit_s=0)
    assert f"another call of p2psgd.ray.run uses {home}: wait for its end" in str(raised.value)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(claim_state, tmp_path, "other", limit_s=60)
        time.sleep(0.2)  # it may wait by now, and need not
        os.close(lock)
        again, lock = waiting.result(60)
    assert again == home
    with pytest.raises(UsageError, match="another call"):
        claim_state(tmp_path, "first", limit_s=0)
    os.close(lock)


def test_without_ray_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs Ray, which is not installed here"):
        p2psgd.ray.run(EXAMPLES / "train.py", nodes=2)
