"""A node has lost its state, and its machine's clock is behind: peers know later lives of it, or say so."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socketserver
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from p2psgd.core.frontier import INCARNATION_MAX, TOLD_MAX
from p2psgd.net.rejections import RESTARTS_MAX
from p2psgd.storage.identity import lay_down_id
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import Hello, Reject, pack_message, parse_message
from p2psgd.wire.reject import RejectCode
from tests.daemons import Daemon, all_stopped, clock_behind, until
from tests.node.test_node import Place, calm, ended, endless
from tests.service_manager import ServiceManager
from tests.wide import widely

pytestmark = pytest.mark.long

ID: Final = 77  # kept through the loss, as one is that a certificate gives


def lay_down(state: Path) -> None:
    state.mkdir(parents=True)
    lay_down_id(state, node=ID, name=state.name)


def knows_all(daemon: Daemon, count: int) -> bool:
    """Return whether the daemon has decided a view of `count` members."""
    view = (daemon.status() or {}).get("view") or {}
    return len(view.get("members", ())) == count


def status_when_ready(daemon: Daemon, peers: set[str], *, above: int = 0) -> dict[str, Any]:
    """Its status in an incarnation above that one; each link of an older one lasts until it is refused."""

    def found() -> dict[str, Any] | None:
        assert daemon.process.poll() is None, daemon.words()[-1000:]
        status = daemon.status()
        if not status or not status.get("ready") or status["incarnation"] <= above:
            return None
        return status if daemon.linked() == peers else None

    words = f"{daemon.state.name} is ready and linked with {peers}, in an incarnation above {above}"
    status: dict[str, Any] = until(found, words)
    return status


@pytest.mark.parametrize(("count", "restarted"), widely([(2, False), (3, True)], [(3, False), (2, True)]))
def test_a_node_with_lost_state_and_a_clock_behind_comes_back_above_its_former_lives(
    tmp_path: Path, count: int, restarted: bool
) -> None:
    place, state = Place(tmp_path, count), tmp_path / "node-1"
    options = endless(calm(tmp_path))
    others = [number for number in range(count) if number != 1]
    names = {f"node-{number}" for number in others}
    lay_down(state)
    with (
        ServiceManager(tmp_path / "notify") as manager,
        all_stopped([place.start(number, *options) for number in range(count)]) as daemons,
    ):
        before = status_when_ready(daemons[1], names)
        for daemon in daemons:  # a node may be ready, and linked, before its first view
            until(partial(knows_all, daemon, count), f"a view of {count} nodes at {daemon.state.name}")
        daemons[1].kill()
        shutil.rmtree(state)
        if restarted:  # so that only the view, on their disks, tells of the life before
            for number in others:
                daemons[number].kill()
                daemons[number] = place.start(number, *options)
        lay_down(state)
        environment = {**clock_behind(tmp_path), "NOTIFY_SOCKET": manager.address}
        daemons[1] = place.start(1, *options, environment=environment)
        after = status_when_ready(daemons[1], names, above=before["incarnation"])
        assert (after["id"], after["pid"]) == (before["id"], daemons[1].process.pid)
        assert json.loads((state / "node.json").read_text())["incarnation"] == after["incarnation"]
        for number in others:
            assert daemons[number].process.poll() is None
        manager.empty()
        assert not any("STOPPING" in said for said in manager.told)  # or systemd would wait for its end
        assert daemons[1].stop() == 0


@contextlib.contextmanager
def liar(port: int, newest: Callable[[int], int]) -> Iterator[list[int]]:
    """A peer that tells whoever greets it of a later life, `newest` of its own; yields those that greeted."""
    met: list[int] = []

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length, number = PREFIX.unpack(self.rfile.read(PREFIX.size))
            hello = parse_message(FrameType(number), self.rfile.read(length))
            assert isinstance(hello, Hello)
            met.append(hello.incarnation)
            told = newest(hello.incarnation)
            reject = Reject(node=1, code=RejectCode.BEHIND, details="a lie", incarnation=told)
            self.wfile.write(pack_message(reject))

    with socketserver.TCPServer(("127.0.0.1", port), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield met
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("newest", "lives", "words"),
    [
        (lambda _: 2**64 - 1, 1, "no clock explains: make it a new node"),
        (lambda mine: TOLD_MAX if mine < TOLD_MAX else 2**64 - 1, 2, "no clock explains: make it a new node"),
        (
            lambda mine: mine + 1,
            RESTARTS_MAX,
            f"begun {RESTARTS_MAX} incarnations in a row, and each was behind another",
        ),
    ],
    ids=["beyond", "as-far-as-believed", "a-little"],
)
def test_a_liar_cannot_push_a_node_beyond_what_a_clock_explains_nor_without_end(
    tmp_path: Path, newest: Callable[[int], int], lives: int, words: str
) -> None:
    place = Place(tmp_path, 2)
    with (
        liar(place.ports[1], newest) as met,
        all_stopped([place.start(0, *endless(calm(tmp_path)))]) as daemons,
    ):
        code, said = ended(daemons[0])
    assert code == 78
    assert words in said
    assert len(set(met)) == lives
    assert met == sorted(met)
    kept = json.loads((tmp_path / "node-0" / "node.json").read_text())["incarnation"]
    assert kept == met[-1] < INCARNATION_MAX
    assert kept <= TOLD_MAX + 2**32


def test_a_reload_between_two_lives_of_a_process_does_not_end_it(tmp_path: Path) -> None:
    place, options = Place(tmp_path, 2), endless(calm(tmp_path))
    over, standard_loop = threading.Event(), {"P2PSGD_LOOP": "asyncio"}  # which lets go of signals at its end

    def reload(daemon: Daemon, met: list[int]) -> None:
        while not over.wait(0.0001):
            if 0 < len(set(met)) < RESTARTS_MAX and daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGHUP)

    with (
        liar(place.ports[1], lambda mine: mine + 1) as met,
        all_stopped([place.start(0, *options, environment=standard_loop)]) as daemons,
    ):
        reloading = threading.Thread(target=reload, args=(daemons[0], met))
        reloading.start()
        try:
            code, _ = ended(daemons[0])
        finally:
            over.set()
            reloading.join()
    assert code == 78
    assert len(set(met)) == RESTARTS_MAX
