"""--peers dns: with a real name server, which plays a headless service: pods appear, move and vanish."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.lan import Lan

NAME: Final = "p2psgd-peers.test"
LIMIT_S: Final = 180


class NameServer:
    """dnsmasq on the first host of a Lan; the others ask it, and no one else."""

    def __init__(self, lan: Lan, place: Path) -> None:
        self._hosts = place / "records"
        self._hosts.write_text("")
        for host in lan.hosts:
            folder = Path("/etc/netns") / host
            folder.mkdir(parents=True)
            (folder / "resolv.conf").write_text(
                f"nameserver {lan.addresses[0]}\noptions timeout:1 attempts:1\n"
            )
        program = shutil.which("dnsmasq", path="/usr/sbin:/usr/bin:/sbin")
        options = [
            *("--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--no-hosts", "--no-resolv"),
            *("--local=/test/", f"--addn-hosts={self._hosts}", "--pid-file", "--bind-interfaces"),
            f"--listen-address={lan.addresses[0]}",
        ]
        self._process = subprocess.Popen([*lan.within(0), str(program), *options])

    def answer(self, *addresses: str) -> None:
        """Have the name lead to these addresses from now on; to none, and it does not exist."""
        self._hosts.write_text("".join(f"{address} {NAME}\n" for address in addresses))
        self._process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def name_server(lan: Lan, place: Path) -> Iterator[NameServer]:
    server = NameServer(lan, place)
    try:
        yield server
    finally:
        server.close()
        for host in lan.hosts:
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)


@pytest.mark.root
@pytest.mark.timeout(900)
def test_pods_that_appear_move_and_vanish_are_found_by_one_name(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("dnsmasq")
    with Lan(6, rate="1gbit", burst="256kb") as lan, name_server(lan, tmp_path) as server:

        def start(name: str, host: int, rank: int, found_by: str = NAME) -> Daemon:
            listen = ("--listen", "0.0.0.0:7315", "--insecure-plaintext", "--failure-timeout", "1")
            found = ("--peers", f"dns:{found_by}", "--bootstrap-expect", "3", "--rank", f"{rank}/4")
            training = ("--trainer", trainer("digits", "--seconds", "600"))
            return Daemon(tmp_path / name, *listen, *found, *training, within=lan.within(host))

        pods = [start(f"pod-{number}", number + 1, number) for number in range(3)]
        with all_stopped(pods):
            until(lambda: all(pod.status() for pod in pods), "all run, and the name does not exist yet")
            assert [pod.linked() for pod in pods] == [set(), set(), set()]

            server.answer(*lan.addresses[1:3])  # they appear one after the other
            until(partial(linked, pods[0], "pod-1"), "the first two are linked", timeout_s=LIMIT_S)
            server.answer(*lan.addresses[1:4])
            for pod in pods:
                others = [each.state.name for each in pods if each is not pod]
                until(partial(linked, pod, *others), "all are linked", timeout_s=LIMIT_S)
            until(lambda: all(ready(pod) for pod in pods), "the run has begun", timeout_s=LIMIT_S)

            pods[2].kill()  # its machine is gone; the pod comes back on another, with its volume
            server.answer(*lan.addresses[1:3], lan.addresses[4])
            # It dials nobody itself, so that others must have found its new address by the name.
            (pods[2].state / "known-peers.txt").unlink()
            pods[2] = start("pod-2", 4, 2, found_by="nobody.test")
            until(
                partial(linked, pods[2], "pod-0", "pod-1"), "it is found where it is now", timeout_s=LIMIT_S
            )
            until(lambda: ready(pods[2]), "it goes on with its state", timeout_s=LIMIT_S)

            pods.append(start("pod-3", 5, 3))  # the set grows
            server.answer(*lan.addresses[1:3], *lan.addresses[4:6])
            until(partial(linked, pods[3], "pod-0", "pod-1", "pod-2"), "the new one", timeout_s=LIMIT_S)

            gone = pods.pop(1)  # and shrinks
            assert gone.stop() == 0
            server.answer(lan.addresses[1], *lan.addresses[4:6])
            here = {pod.state.name for pod in pods[1:]}
            until(lambda: pods[0].linked() == here, "the others are left", timeout_s=LIMIT_S)

            server.answer()  # the name server loses it: what it said last counts
            until(lambda: all(ready(pod) for pod in pods), "all are still ready")
            before = steps_of(pods[0])
            until(lambda: steps_of(pods[0]) > before + 20, "and train", timeout_s=LIMIT_S)
            stop_trainers(pods)
            assert assert_replicas_identical(pods, timeout_s=LIMIT_S)


def linked(daemon: Daemon, *names: str) -> bool:
    return daemon.linked() >= set(names)


def ready(daemon: Daemon) -> bool:
    return bool((daemon.status() or {}).get("ready"))


def steps_of(daemon: Daemon) -> int:
    return int((daemon.status() or {"trainer": {}})["trainer"].get("steps", 0))


def stop_trainers(daemons: list[Daemon]) -> None:
    """Have the training end, and the nodes go on."""
    for daemon in daemons:
        with ControlClient(control_path(daemon.state), timeout_s=30) as client:
            client.request("finish")
    for daemon in daemons:
        until(daemon.finished, "the trainer has ended", timeout_s=LIMIT_S)
