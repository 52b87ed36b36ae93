"""A model in parts: a daemon for each, one trainer command for all, and commands that ask them all."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2psgd.base.errors import ExitCode, P2psgdError
from p2psgd.ipc.part import combine_digests, group_directory
from p2psgd.net.address import Address
from p2psgd.net.peer_sources.parse import parse_peers
from p2psgd.node.options import NodeOptions
from p2psgd.node.parts import Parts
from p2psgd.observe.status import TrainerStatus
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.event_log import EVENTS_NAME, EventLog, last_event
from p2psgd.storage.files import FOLDER
from tests import DEADLINE_S
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run

SCRIPT = Path(__file__).with_name("part_trainer.py")


def command(steps: int) -> str:
    return shlex.join([sys.executable, str(SCRIPT), str(steps)])


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "p2psgd", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_all_parts_of_two_nodes_train_and_are_proved_equal(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    run = Run(tmp_path, "-n", "2", "--parts", "2", "--trainer", command(30), "--weights", str(weights))
    try:
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["nodes"], report["parts"], report["weights"]) == (2, 2, 18)
    assert [node["node"] for node in report["per_node"]] == ["node-0.0", "node-0.1", "node-1.0", "node-1.1"]
    assert [node["steps"] for node in report["per_node"]] == [30] * 4
    assert report["replicas_identical"]
    assert report["digest"] == combine_digests(report["part_digests"])
    trained = load_file(weights)
    assert {name: values.shape for name, values in trained.items()} == {"matrix": (5, 3), "bias": (3,)}
    for values in trained.values():
        np.testing.assert_allclose(values, 2 * 30 * 2.0**-10, atol=2.0**-9)


def test_a_daemon_that_is_killed_comes_back_with_all_ranks_of_its_group(tmp_path: Path) -> None:
    run = Run(tmp_path, "-n", "2", "--parts", "2", "--trainer", command(9000), "--failure-timeout", "1")
    places = [Path("node-1") / f"part-{part}" for part in range(2)]
    try:
        wait_until(
            lambda: all(run.status_at(place).get("trainer", {}).get("steps", 0) > 20 for place in places),
            "both parts to train",
        )
        ranks = [run.status_at(place)["trainer"]["pid"] for place in places]
        before = run.status_at(places[1])["incarnation"]
        os.kill(run.status_at(places[1])["pid"], signal.SIGKILL)
        wait_until(
            lambda: all(
                (status := run.status_at(place)).get("trainer", {}).get("attached")
                and status["trainer"]["pid"] not in ranks
                for place in places
            ),
            "all ranks of the group to begin again",
        )
        assert run.status_at(places[1])["incarnation"] > before
        assert run.status_at(places[0])["trainer"]["attached"]
        told = ask("status", "--state", str(run.state / "node-1"))
        assert told.returncode == ExitCode.OK, told.stderr
        assert "2 parts of one model on this machine, 2 running" in told.stdout
        assert "1 restart of its daemon; the daemon of part 1 was killed by signal 9" in told.stdout
        told = ask("status", "--json", "--state", str(run.state / "node-1"))
        assert told.returncode == ExitCode.OK, told.stderr
        answer = json.loads(told.stdout)
        assert len(answer["parts"]) == answer["node"]["parts"] == 2
        check_overview(run.state / "node-1")
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])


def check_overview(state: Path) -> None:
    """What `top`, `events` and `checkpoint list` say of a node whose part 1 was killed."""
    told = ask("top", "--once", "--state", str(state))
    assert told.returncode == ExitCode.OK, told.stderr
    lines = told.stdout.splitlines()
    assert lines[0] == "2 parts of one model on this machine, 2 running"
    rows = [line.split() for line in lines if line.startswith(("part 0 ", "part 1 "))]
    assert [row[:2] for row in rows if "restart" not in " ".join(row)] == [["part", "0"], ["part", "1"]]
    assert not [line for line in lines if line.startswith("all ")]

    told = ask("events", "--json", "--kind", "start", "--state", str(state))
    assert told.returncode == ExitCode.OK, told.stderr
    events = [json.loads(line) for line in told.stdout.splitlines()]
    assert [event.get("part") for event in events].count(1) == 2
    assert [event.get("part") for event in events].count(0) == 1
    (whole,) = (event["words"] for event in events if "part" not in event)
    assert whole.startswith("2 parts, pid ")
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)

    told = ask("events", "--kind", "trainer", "--state", str(state))
    assert "trainer         the daemon of part 1 was killed by signal 9; started again in 1 s" in told.stdout

    def listed() -> list[int]:
        told = ask("checkpoint", "list", "--json", "--state", str(state))
        return [len(each) for each in json.loads(told.stdout)["parts"]]

    wait_until(lambda: all(listed()), "a checkpoint of each part")
    told = ask("checkpoint", "list", "--state", str(state))
    assert (told.returncode, told.stderr) == (ExitCode.OK, "")
    assert [line for line in told.stdout.splitlines() if "part" in line] == ["part 0", "part 1"]


def test_the_digest_of_a_node_names_all_its_parts(tmp_path: Path) -> None:
    run = Run(tmp_path, "-n", "1", "--parts", "2", "--trainer", command(9000))
    try:
        run_place = Path("node-0") / "part-0"
        wait_until(lambda: run.status_at(run_place).get("trainer", {}).get("steps", 0) > 5, "training")
        told = ask("digest", "--state", str(run.state / "node-0"))
        assert told.returncode == ExitCode.OK, told.stderr + told.stdout
        last = told.stdout.splitlines()[-1]
        digests = [word.strip(",") for word in last.split() if len(word.strip(",:")) == 16]
        assert digests[0].strip(":") == combine_digests(digests[1:])
        assert len(digests) == 3
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()


def test_a_new_start_waits_for_daemons_of_one_that_was_killed(tmp_path: Path) -> None:
    state, hosts, log = tmp_path / "state", tmp_path / "hosts.txt", tmp_path / "log.txt"
    (state / "part-1").mkdir(parents=True)
    host = f"127.91.{random.randint(1, 254)}.{random.randint(1, 254)}:7400"
    hosts.write_text(f"{host}\n")
    lock = os.open(state / "part-1" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a daemon has it that has not yet saved
    (state / "parts.json").write_text('{"pid": 2147483647, "parts": 7}')  # as kill -9 leaves it
    told = ask("status", "--state", str(state))
    assert "7 parts" not in told.stdout, told.stdout
    options = ["--parts", "2", "--peers", str(hosts), "--listen", host, "--state", str(state)]
    with log.open("wb") as output:
        node = subprocess.Popen(
            [sys.executable, "-m", "p2psgd", "node", *options], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: "waiting for the daemon of part 1" in log.read_text(), "it to wait")
        assert node.poll() is None
        os.close(lock)
        both = [state / f"part-{part}" / "control.sock" for part in range(2)]
        wait_until(lambda: all(map(os.path.lexists, both)), "both daemons to run")
        os.kill(node.pid, signal.SIGTERM)
        assert node.wait(DEADLINE_S) == ExitCode.OK, log.read_text()
    finally:
        node.kill()
        node.wait()


def test_a_node_of_parts_ends_with_its_trainers(tmp_path: Path) -> None:
    hosts, log = tmp_path / "hosts.txt", tmp_path / "log.txt"
    places = [f"127.92.{random.randint(1, 254)}.{number}:7400" for number in (1, 2)]
    hosts.write_text("\n".join(places))
    nodes = []
    for number, place in enumerate(places):
        options = ["--peers", str(hosts), "--listen", place, "--state", str(tmp_path / f"node-{number}")]
        options += ["--parts", "2", "--trainer", command(30), "--end-with-trainer", "--failure-timeout", "1"]
        with log.open("ab") as output:
            words = [sys.executable, "-m", "p2psgd", "node", *options]
            nodes.append(subprocess.Popen(words, stdout=output, stderr=output))
    try:
        assert [node.wait(DEADLINE_S) for node in nodes] == [0, 0], log.read_text()
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert log.read_text().count("this node ends once no other makes steps any more") == 2
    for part in range(2):
        stores = [CheckpointStore(tmp_path / f"node-{number}" / f"part-{part}" / FOLDER) for number in (0, 1)]
        one, two = (store.latest()[0] for store in stores)
        assert one is not None
        assert two is not None
        assert one.digest == two.digest


def test_the_parts_of_another_model_or_half_of_one_are_not_put_together(tmp_path: Path) -> None:
    run = Run(tmp_path, "-n", "1", "--parts", "2", "--trainer", command(9000))
    try:
        state = run.state / "node-0"
        wait_until(
            lambda: run.status_at(Path("node-0/part-0")).get("trainer", {}).get("steps", 0) > 5, "steps"
        )
        (state / "part-2").mkdir()  # as of an earlier run in three parts
        assert ask("export", str(tmp_path / "w.npz"), "--state", str(state)).returncode == ExitCode.OK
        (state / "part-2").rmdir()
        half = tmp_path / "half"
        half.mkdir()
        (half / "part-0").symlink_to(state / "part-0")
        for words in (["digest"], ["export", str(tmp_path / "h.npz")]):
            told = ask(*words, "--state", str(half))
            assert told.returncode in (ExitCode.FAILED, ExitCode.DATA), told.stdout
            assert "a model in 2 parts needs each of them, and here are 0/2" in told.stderr
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--part", "2/2"), "'2/2' is not k/K with 0 <= k < K"),
        (("--part", "0/2", "--parts", "2"), "give one"),
        (("--parts", "2", "--zeroconf"), "leave --zeroconf out"),
        (("--parts", "2", "--control", "here.sock"), "leave it out"),
        (("--parts", "2", "--listen", "127.0.0.1:65535"), "the first of 2 ports, one for each part"),
    ],
)
def test_options_that_do_not_go_with_parts_are_refused(options: tuple[str, ...], words: str) -> None:
    told = ask("node", *options)
    assert told.returncode == ExitCode.USAGE
    assert words in told.stderr


@pytest.mark.parametrize(
    ("there", "options", "words"),
    [
        (("part-0", "part-1"), (), "a node of 2 parts: give --parts 2 to go on with it"),
        (("part-0", "part-1"), ("--parts", "3"), "a node of 2 parts: give --parts 2 to go on with it"),
        (("",), ("--parts", "2"), "a node without parts: leave --parts out to go on with it"),
    ],
)
def test_a_state_of_another_number_of_parts_is_refused(
    tmp_path: Path, there: tuple[str, ...], options: tuple[str, ...], words: str
) -> None:
    """Else the node begins anew beside its checkpoints, and these seem to be gone."""
    state = tmp_path / "state"
    for each in there:
        (state / each / "run").mkdir(parents=True)
    peers = ("--peers", "127.0.0.1:7400", "--listen", "127.0.0.1:7400", "--state", str(state))
    told = ask("node", *peers, *options)
    assert told.returncode == ExitCode.USAGE
    assert words in told.stderr
    assert sorted(path.name for path in state.iterdir()) == sorted(each or "run" for each in there)


def test_daemons_of_parts_get_the_words_of_peers_as_they_were_given(tmp_path: Path) -> None:
    for text in ("file:dns:x", "./dns:x", "exec:echo --key secret"):
        options = NodeOptions(peers=parse_peers(text), listen=Address("127.0.0.1", 7315), state=tmp_path)
        words = Parts(options, 2, log_format="text").words(1)
        assert words[words.index("--peers") + 1] == text


class Silent(P2psgdError):
    """A daemon does not answer."""


def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[TrainerStatus | None]) -> Parts:
    """Return parts whose first daemon gives these answers about its trainer, one after the other; None where
    it is too busy for one.
    """
    listen = Address("127.0.0.1", 7315)
    options = NodeOptions(peers=None, listen=listen, trainer="train", state=tmp_path)
    parts = Parts(options, 2, log_format="text")

    def answer(index: int) -> TrainerStatus:
        given = answers.pop(0)
        if given is None:
            raise Silent
        return given

    monkeypatch.setattr(parts, "_trainer_of", answer)
    return parts


def test_a_daemon_that_does_not_answer_as_the_trainer_ends_makes_no_complete_training_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = TrainerStatus(attached=True, steps=7)
    parts = answering(tmp_path, monkeypatch, [came, None, None])
    assert (parts._steps(), parts._steps()) == (7, 7)
    parts._on_trainer_end()
    assert parts._ending is None

    parts = answering(tmp_path, monkeypatch, [None, came])  # it has ended before anybody saw it
    parts._on_trainer_end()
    parts._judge_end()
    assert parts._ending is None

    parts = answering(tmp_path, monkeypatch, [None, TrainerStatus()])
    parts._on_trainer_end()
    assert parts._ending is None
    parts._judge_end()
    assert parts._ending == (
        "the trainer ended without attaching to this node: train",
        ExitCode.CONFIGURATION,
    )


def test_a_second_ctrl_c_ends_all_parts_at_once_and_a_second_sigterm_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come twice for one stop. The next start says that the last run was cut short, or was not."""
    parts = answering(tmp_path, monkeypatch, [])
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    group = group_directory(tmp_path)
    group.mkdir()
    parts._on_signal(signal.SIGTERM)
    parts._on_signal(signal.SIGTERM)
    assert not ended
    assert EventLog(group).cut_short is False, "there are no events"
    parts._on_signal(signal.SIGINT)
    assert ended == [ExitCode.TEMPORARY]
    assert not EventLog(group).cut_short
    assert last_event(group / EVENTS_NAME)["words"] == (  # type: ignore[index]
        "stopped at once, without waiting for acknowledgements (exit code 75)"
    )


class Script:
    """The supervisor of a trainer command that ends once it is waited for; `calls`: what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def finish(self) -> None:
        self.calls.append("finish")

    async def wait(self, limit_s: float) -> None:
        self.calls.append(f"wait {limit_s:g}")

    async def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.parametrize(
    ("came", "calls"), [(True, ["finish", "wait 10", "stop"]), (False, ["finish", "stop"])]
)
def test_a_script_that_has_left_its_link_has_time_to_evaluate_and_save_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, came: bool, calls: list[str]
) -> None:
    async def stop() -> list[str]:
        parts = answering(tmp_path, monkeypatch, [TrainerStatus(attached=came)])
        parts._ask()
        script = Script()
        monkeypatch.setattr(parts, "_trainer", script)
        parts._on_signal(signal.SIGINT)
        await parts._stop([asyncio.create_task(asyncio.sleep(0))])
        return script.calls

    assert asyncio.run(stop()) == calls


def test_a_daemon_that_is_being_started_when_all_stop_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop() -> tuple[str, ExitCode]:
        parts = answering(tmp_path, monkeypatch, [])
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def start(_: int) -> asyncio.subprocess.Process:
            process = await asyncio.create_subprocess_exec("sleep", "600")
            begun.set()
            await go_on.wait()
            return process

        monkeypatch.setattr(parts, "_start", start)
        keepers = [asyncio.create_task(parts._keep(0))]
        await begun.wait()
        parts._on_signal(signal.SIGTERM)
        stopping = asyncio.create_task(parts._stop(keepers))
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.wait_for(stopping, DEADLINE_S)

    assert asyncio.run(stop())[1] is ExitCode.OK


def test_a_local_run_in_another_number_of_parts_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    run = Run(tmp_path, "-n", "1", "--parts", "2", "--trainer", command(30))
    try:
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    refused = ask("local", "-n", "1", "--parts", "3", "--state", str(run.state), "--trainer", command(30))
    assert refused.returncode == ExitCode.USAGE
    assert "a node of 2 parts: give --parts 2 to go on with it" in refused.stderr
    assert not (run.state / "node-0" / "part-2").exists()


def test_parts_are_for_a_script_of_the_users_own() -> None:
    told = ask("local", "--parts", "2")
    assert told.returncode == ExitCode.USAGE
    assert "--parts is for a script that cuts its model over the ranks of a process group" in told.stderr
