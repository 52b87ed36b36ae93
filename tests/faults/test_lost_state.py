"""A node has lost its state, and its machine's clock is behind: its peers know later lives of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from p2psgd.identity import lay_down_id
from tests.daemons import Daemon, all_stopped, clock_behind, until
from tests.service_manager import ServiceManager
from tests.test_node import Place, calm, endless

pytestmark = pytest.mark.timeout(240)

ID: Final = 77  # kept through the loss, as one is that a certificate gives


def lay_down(state: Path) -> None:
    state.mkdir(parents=True)
    lay_down_id(state, node=ID, name=state.name)


def status_when_ready(daemon: Daemon, peers: set[str]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        assert daemon.process.poll() is None, daemon.words()[-1000:]
        status = daemon.status()
        return status if status and status.get("ready") and daemon.linked() == peers else None

    status: dict[str, Any] = until(found, f"{daemon.state.name} is ready and linked with {peers}")
    return status


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("restarted", [False, True], ids=["peers-stay", "peers-restart"])
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
        daemons[1].kill()
        shutil.rmtree(state)
        if restarted:  # so that only the view, on their disks, tells of the life before
            for number in others:
                daemons[number].kill()
                daemons[number] = place.start(number, *options)
        lay_down(state)
        environment = {**clock_behind(tmp_path), "NOTIFY_SOCKET": manager.address}
        daemons[1] = place.start(1, *options, environment=environment)
        after = status_when_ready(daemons[1], names)
        assert (after["id"], after["pid"]) == (before["id"], daemons[1].process.pid)
        assert after["incarnation"] > before["incarnation"]
        assert json.loads((state / "node.json").read_text())["incarnation"] == after["incarnation"]
        for number in others:
            assert daemons[number].process.poll() is None
        manager.empty()
        assert not any("STOPPING" in said for said in manager.told)  # or systemd would wait for its end
        assert daemons[1].stop() == 0
