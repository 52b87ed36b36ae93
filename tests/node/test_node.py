"""Real daemons on loopback: what a user, a faulty peer or a kill -9 does to them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.net.address import Address
from p2psgd.node.daemon import Node
from p2psgd.node.options import NodeOptions
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.files import FOLDER
from p2psgd.wire.frames import FrameType, pack_frame
from tests import DEADLINE_S
from tests.daemons import P2PSGD, PACED, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.ports import free_ports
from tests.stranger import Stranger


class Place:
    """Ports, a hosts.txt and the options of each node."""

    def __init__(self, tmp_path: Path, nodes: int) -> None:
        self.path = tmp_path
        self.ports = free_ports(nodes)
        self.hosts = tmp_path / "hosts.txt"
        self.hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in self.ports))

    def start(
        self,
        number: int,
        *options: str,
        state: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> Daemon:
        return Daemon(
            self.path / (state or f"node-{number}"),
            *(
                "--peers",
                str(self.hosts),
                "--listen",
                f"127.0.0.1:{self.ports[number]}",
                "--failure-timeout",
                "1",
            ),
            *options,
            environment=environment,
        )


def endless(recipe: str, *options: str) -> tuple[str, str]:
    """The option for a trainer that trains until it is stopped, and leaves the cores to others meanwhile."""
    return "--trainer", trainer(recipe, "--seconds", "100000", *options, program=PACED)


def calm(tmp_path: Path) -> str:
    """A recipe whose weights stay small however long it runs."""
    path = tmp_path / "calm.toml"
    settings = ('name = "calm"', 'data = "digits"', "hidden = [32]", "learning_rate = 0.0001", "tau = 0.1")
    path.write_text("\n".join(settings) + "\nbatch = 256\nepochs = 4\nwarm_start = 0\n")
    return str(path)


def steps(daemon: Daemon) -> int:
    status = daemon.status()
    return 0 if status is None else int(status["trainer"]["steps"])


def ended(daemon: Daemon) -> tuple[int, str]:
    """Exit code and last line of a daemon that must end by itself."""
    code = daemon.process.wait(DEADLINE_S)
    return code, daemon.words().strip().splitlines()[-1]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with socket.create_server(("127.0.0.1", place.ports[0])), all_stopped([place.start(0)]) as daemons:
        code, words = ended(daemons[0])
    assert code == 78
    assert f"cannot listen on 127.0.0.1:{place.ports[0]}: address already in use" in words


def test_a_port_is_taken_before_any_trainer_attaches(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0)]) as daemons:
        until(daemons[0].status, "the first daemon answers")
        daemons.append(place.start(0, state="other"))
        code, words = ended(daemons[1])
    assert code == 78
    assert "address already in use" in words


def test_what_a_node_keeps_is_not_for_everybody_also_in_a_directory_made_by_hand(tmp_path: Path) -> None:
    place, state = Place(tmp_path, 1), tmp_path / "node-0"
    state.mkdir()
    state.chmod(0o755)
    usual = ["sh", "-c", 'umask 022 && exec "$@"', "sh"]
    options = (
        "--peers",
        str(place.hosts),
        "--listen",
        f"127.0.0.1:{place.ports[0]}",
        "--failure-timeout",
        "1",
    )
    with all_stopped([Daemon(state, *options, *endless(calm(tmp_path)), within=usual)]) as [daemon]:
        until(lambda: steps(daemon) > 20, "training")
        assert daemon.stop() == 0
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {"node.json", "votes.json", "events.jsonl", "lock"} < {path.name for path in files}
    assert any(path.suffix == ".safetensors" for path in files)
    assert {path.name: oct(path.stat().st_mode & 0o7777) for path in files} == {
        path.name: "0o640" for path in files
    }


def test_a_trainer_that_never_attaches_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, "--trainer", "true")]) as daemons:
        code, words = ended(daemons[0])
    assert code == 78
    assert "the trainer ended without attaching to this node: true" in words


def test_a_trainer_that_crashed_is_awaited_with_its_reason_and_not_when_the_node_stops(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, 1)
    program = "import os; print('no such data'); os.kill(os.getpid(), 9)"
    crashes = shlex.join([sys.executable, "-c", program])
    crash = r"the trainer crashed \(killed by signal 9\); it said last: no such data"
    waits = re.compile(rf"the trainer is started again in \d+ s; {crash}")
    with all_stopped([place.start(0, "--trainer", crashes)]) as daemons:
        until(lambda: waits.fullmatch((daemons[0].status() or {"waits": ""})["waits"]), "it is awaited")
        assert daemons[0].stop() == 0
    assert re.search(rf"{crash}; started again in 1 s", daemons[0].words())


FAILS = """
import numpy as np, p2psgd

def check(link):
    raise ValueError(f"after step {link.steps}")

with p2psgd.attach(np.zeros(100, np.float32)) as link:
    link.receive()
    link.send(np.full(100, 1e-3, np.float32), threshold=1000)
    check(link)
"""


def test_a_script_with_a_bug_ends_its_node_with_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, "--trainer", f"{sys.executable} {script}")]) as daemons:
        code, last = ended(daemons[0])
        log = daemons[0].words()
    assert code == ExitCode.TRAINER
    assert "the trainer crashed (exit code 1): ValueError: after step 2; twice alike" in last
    assert log.count("| Traceback (most recent call last):") == 2
    assert log.count('|     raise ValueError(f"after step {link.steps}")') == 2


def test_a_script_that_is_not_there_is_named_and_not_tried_again(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, "--trainer", f"{sys.executable} absent.py")]) as daemons:
        code, last = ended(daemons[0])
        log = daemons[0].words()
    assert code == ExitCode.CONFIGURATION
    assert re.search(r"the trainer cannot run \(exit code 2\): .*absent.py", last)
    assert "started again" not in log


def test_a_state_directory_in_use_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    with all_stopped([place.start(0, state="shared")]) as daemons:
        until(daemons[0].status, "the first daemon answers")
        second = subprocess.run(
            [*P2PSGD, "node", "--peers", str(place.hosts), "--state", str(tmp_path / "shared")],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert second.returncode == 78
        assert "another daemon is using the state directory" in second.stderr
        assert daemons[0].status() is not None


def test_a_bad_line_in_hosts_txt_refuses_the_start(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    place.hosts.write_text("127.0.0.1:7000\nnot a host\n")
    with all_stopped([place.start(0)]) as daemons:
        code, words = ended(daemons[0])
    assert code == 78
    assert "hosts.txt line 2: 'not a host'" in words


def test_another_runs_peer_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    recipe = Path(calm(tmp_path))
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text() + "seed = 7\n")
    with all_stopped(
        [place.start(0, *endless(str(recipe))), place.start(1, *endless(str(other)))]
    ) as daemons:
        for daemon in daemons:
            code, words = ended(daemon)
            assert code == 78
            assert "no peer accepts this node" in words
            assert "fingerprint" in words


def test_one_wrong_node_among_three_ends_and_the_others_go_on(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    recipe = Path(calm(tmp_path))
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text().replace("[32]", "[33]"))
    recipes = (recipe, recipe, other)
    with all_stopped([place.start(i, *endless(str(path))) for i, path in enumerate(recipes)]) as daemons:
        code, words = ended(daemons[2])
        assert code == 78
        assert "weights" in words
        until(lambda: daemons[0].linked() == {"node-1"}, "the other two are linked")
        until(lambda: (daemons[0].status() or {})["dropped"].get("run"), "the refusal is counted")


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import p2psgd

folder = Path(sys.argv[1])
link = p2psgd.attach(np.zeros(10, np.float32))
while sys.argv[2] == "ignores" or not link.stopping:
    link.receive()
    link.send(np.full(10, 1e-3, np.float32), threshold=1000)
    time.sleep(0.01)
link.close()
time.sleep(1)  # in which it evaluates
(folder / "saved").touch()
"""


@pytest.mark.parametrize("what", ["looks", "ignores"])
def test_a_script_that_ends_when_it_is_asked_to_may_evaluate_and_save_before_its_node_ends(
    tmp_path: Path, what: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = shlex.join([sys.executable, str(tmp_path / "train.py"), str(tmp_path), what])
    with all_stopped([Place(tmp_path, 1).start(0, "--trainer", command)]) as [daemon]:
        until(lambda: steps(daemon) > 5, "training")
        assert daemon.stop() == 0
    assert (tmp_path / "saved").exists() == (what == "looks")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl+C"])
def test_a_stopped_daemon_drains_exits_0_and_leaves_no_orphan(tmp_path: Path, number: signal.Signals) -> None:
    place = Place(tmp_path, 2)
    trained = endless(calm(tmp_path))
    with all_stopped([place.start(0, *trained), place.start(1, *trained)]) as daemons:
        until(lambda: steps(daemons[0]) > 20 and daemons[0].linked(), "training")
        status = daemons[0].status()
        assert status is not None
        trainer_pid = status["trainer"]["pid"]
        daemons[0].process.send_signal(number)
        if number is signal.SIGTERM:  # which may come twice for one stop
            until(lambda: "stopping: " in daemons[0].words(), "it stops")
            daemons[0].process.send_signal(number)
        assert daemons[0].process.wait(DEADLINE_S) == 0
        assert not Path(f"/proc/{trainer_pid}").exists()
        until(
            lambda: [peer["state"] for peer in (daemons[1].status() or {})["peers"]] == ["stopped"],
            "the other side knows that it stopped",
        )
        before = steps(daemons[1])
        until(lambda: steps(daemons[1]) > before + 20, "the other goes on")


def test_only_a_second_ctrl_c_stops_a_daemon_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    trained = endless(calm(tmp_path))
    patient = ("--failure-timeout", "60")
    with all_stopped([place.start(number, *trained, *patient) for number in (0, 1)]) as [daemon, other]:
        until(lambda: steps(daemon) > 20 and daemon.linked(), "training")
        other.process.send_signal(signal.SIGSTOP)  # so that nobody acknowledges
        try:
            daemon.process.send_signal(signal.SIGINT)
            until(lambda: "stopping: waiting until peers" in daemon.words(), "it waits")
            daemon.process.send_signal(signal.SIGTERM)
            until(lambda: "SIGTERM has come while this node ends" in daemon.words(), "it goes on waiting")
            daemon.process.send_signal(signal.SIGINT)
            assert daemon.process.wait(DEADLINE_S) == ExitCode.TEMPORARY
        finally:
            other.process.send_signal(signal.SIGCONT)
        assert "stopped at once, without waiting" in daemon.words()


def test_a_daemon_that_is_killed_comes_back_with_all_that_others_hold(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    trained = ("--trainer", trainer("digits", "--steps", "150"))
    with all_stopped([place.start(number, *trained) for number in range(3)]) as daemons:
        until(lambda: steps(daemons[2]) > 50 and len(daemons[2].linked()) == 2, "training")
        daemons[2].kill()
        daemons[2] = place.start(2, *trained)
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert_replicas_identical(daemons)


def test_the_standard_event_loop_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PSGD_LOOP", "asyncio")
    place = Place(tmp_path, 2)
    trained = ("--trainer", trainer("digits", "--steps", "100"))
    with all_stopped([place.start(number, *trained) for number in range(2)]) as daemons:
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert_replicas_identical(daemons)
        assert [daemon.stop() for daemon in daemons] == [0, 0]


def test_a_trainer_that_a_person_must_mend_ends_the_daemon_with_its_sentence(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, "--trainer", trainer("no-such-recipe"))]) as daemons:
        code, words = ended(daemons[0])
    assert code in (64, 78)
    assert "no-such-recipe" in words


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), OSError("a bug")])
def test_a_bug_in_a_task_ends_the_daemon_instead_of_half_of_it(tmp_path: Path, error: Exception) -> None:
    async def broken() -> None:
        raise error

    async def scenario() -> None:
        node = Node(NodeOptions(peers=None, listen=Address("127.0.0.1", 0), state=tmp_path))
        serving = asyncio.create_task(node.serve())
        while not (tmp_path / "control.sock").exists():
            await asyncio.sleep(0.01)
        node._spawn(broken())
        await serving

    with pytest.raises(UsageError, match=r"internal error.*a bug") as caught:
        asyncio.run(scenario())
    assert caught.value.exit_code is ExitCode.INTERNAL


def test_a_signal_at_the_end_of_a_life_is_for_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(NodeOptions(peers=None, listen=Address("127.0.0.1", 0), state=tmp_path))
        serving = asyncio.create_task(node.serve())
        while not (tmp_path / "control.sock").exists():
            await asyncio.sleep(0.01)
        node.begin_again(2**59, "a peer said so")
        assert await serving is ExitCode.OK
        loop = asyncio.get_running_loop()
        for number, take in ((signal.SIGTERM, node._on_signal), (signal.SIGHUP, lambda _: node._reload())):
            came = loop.create_future()
            loop.add_signal_handler(number, came.set_result, None)
            take(number)
            await asyncio.wait_for(came, DEADLINE_S)
        assert node.above == 2**59

    asyncio.run(scenario())


@pytest.mark.parametrize("stopped", [False, True], ids=["goes-on", "is-stopped"])
def test_a_life_that_ends_for_another_ends_in_order_and_for_good_if_it_is_stopped_meanwhile(
    tmp_path: Path, stopped: bool
) -> None:
    async def scenario() -> Node:
        node = Node(NodeOptions(peers=None, listen=Address("127.0.0.1", 0), state=tmp_path))
        serving = asyncio.create_task(node.serve())
        while not (tmp_path / "control.sock").exists():
            await asyncio.sleep(0.01)
        node.begin_again(2**59, "a peer said so")
        if stopped:
            node._on_signal(signal.SIGTERM)
        assert await serving is ExitCode.OK
        return node

    node = asyncio.run(scenario())
    assert node.above == (0 if stopped else 2**59)
    last = node.node_log.events.latest[-1]
    assert last["kind"] == "stop"
    assert ("stopped by SIGTERM" if stopped else "this daemon restarts above incarnation") in last["words"]
    Node(node.options, above=2**59).identity.release()  # the state directory was given back


def bad_frame(stranger: Stranger, what: str) -> bytes:
    far = stranger.weights
    match what:
        case "checksum":
            body = bytearray(stranger.update([1, 2]))
            body[-1] ^= 1
            return pack_frame(FrameType.UPDATE, bytes(body))
        case "index":
            return pack_frame(FrameType.UPDATE, stranger.update([far + 5], weights=far + 6))
        case "past the end":  # all that unsorted indices could become: gaps are never negative
            return pack_frame(FrameType.UPDATE, stranger.update([far - 1, far], weights=far + 1))
        case "count":
            return pack_frame(FrameType.UPDATE, stranger.update([1, 2], count=3))
        case "garbage":
            return os.urandom(4096)
        case "huge":
            return struct.pack("<IB", 2**32 - 1, FrameType.UPDATE)
        case "message":
            return pack_frame(FrameType.STATUS, b"\x81\xa1x\x01")
        case _:
            pass
    raise AssertionError(what)


BAD = {
    "checksum": {"checksum"},
    "index": {"payload"},
    "past the end": {"payload"},
    "count": {"payload"},
    "garbage": {"frame type", "frame length", "frame order", "message"},
    "huge": {"frame length"},
    "message": {"message"},
}


def test_misbehaving_peers_are_dropped_counted_and_harm_nobody(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    trained = endless(calm(tmp_path))
    with all_stopped([place.start(0, *trained), place.start(1, *trained)]) as daemons:
        until(lambda: daemons[0].linked() == {"node-1"}, "linked")
        for what, reasons in BAD.items():
            before = (daemons[0].status() or {})["dropped"]
            stranger = Stranger(daemons[0], place.ports[0])
            stranger.socket.sendall(bad_frame(stranger, what))
            while stranger.socket.recv(65536):
                pass  # until it hangs up
            stranger.close()
            after = (daemons[0].status() or {})["dropped"]
            counted = {reason for reason in after if after[reason] > before.get(reason, 0)}
            assert counted, what
            assert counted <= reasons, (what, counted)
        count = steps(daemons[0])
        until(lambda: steps(daemons[0]) > count + 20, "training goes on")
        assert daemons[0].linked() == {"node-1"}
        status = daemons[0].status()
        assert status is not None
        assert all(row["id"] != f"{42:016x}" for row in status["frontier"])


LINGERING = """
import sys, time
from pathlib import Path
import numpy as np
import p2psgd
flag = Path(sys.argv[1])
try:
    with p2psgd.attach(np.zeros(10, np.float32)) as link:
        while not link.stopping:
            time.sleep(0.05)
        raise KeyboardInterrupt
finally:
    while not flag.exists():
        time.sleep(0.05)
"""


def test_a_script_that_was_asked_to_end_and_takes_its_time_is_not_about_to_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LINGERING)
    script = shlex.join([sys.executable, str(tmp_path / "train.py"), str(tmp_path / "end")])
    daemon = Place(tmp_path, 1).start(0, "--trainer", script)
    with all_stopped([daemon]):
        until(lambda: (daemon.status() or {"state": ""})["state"] == "training", "it trains")
        with ControlClient(control_path(daemon.state)) as client:
            client.request("finish")
        until(lambda: "trainer left" in daemon.words(), "it has left")
        status = daemon.status() or {}
        assert (status["trainer"]["running"], status["state"], status["waits"]) == (True, "serving", "")
        (tmp_path / "end").touch()
        until(daemon.finished, "it has ended")


@pytest.mark.parametrize("mode", ["async", "ring"])
def test_nodes_end_with_their_trainers_and_leave_whole_checkpoints(tmp_path: Path, mode: str) -> None:
    """All with the same weights, though in async the second one takes longer."""
    place = Place(tmp_path, 2)
    pace = {0: P2PSGD, 1: P2PSGD if mode == "ring" else PACED}
    with all_stopped([]) as daemons:
        for number, program in pace.items():
            command = trainer("digits", "--steps", "60", "--mode", mode, program=program)
            daemons.append(place.start(number, "--trainer", command, "--end-with-trainer"))
        assert [daemon.process.wait(DEADLINE_S) for daemon in daemons] == [0, 0]
    kept = [CheckpointStore(daemon.state / FOLDER).latest()[0] for daemon in daemons]
    assert all("ended with its trainer, which has finished" in daemon.words() for daemon in daemons)
    last = [checkpoint and (checkpoint.digest, sorted(checkpoint.rows)) for checkpoint in kept]
    assert last[0] == last[1] is not None


def test_a_node_that_is_stopped_before_its_trainer_has_finished_wants_to_be_started_again(
    tmp_path: Path,
) -> None:
    daemon = Place(tmp_path, 1).start(0, *endless(calm(tmp_path)), "--end-with-trainer")
    with all_stopped([daemon]):
        until(lambda: steps(daemon) > 5, "it trains")
        assert daemon.stop() == 75
        assert "stopped by SIGTERM, before its trainer has finished" in daemon.words()
