"""`p2psgd up` and `down` on machines with a systemd and an sshd of their own, by the system's ssh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.daemons import until
from tests.engines.pages import PROGRAM, blocks_of, path_with
from tests.operations.machines import CHECKOUT, Machines, is_possible

NAMES: Final = [f"node-{number}" for number in range(1, 6)]
INSTALLED: Final = "program, units, options, certificate, list of hosts, started"
LIMIT_S: Final = 500
SSHD: Final = """
HostKey /shared/host_key
PidFile /run/sshd.pid
AuthorizedKeysFile /shared/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv PATH=/shared/stand-ins:/usr/sbin:/usr/bin:/sbin:/bin
"""
CLIENT: Final = """
Host *
  User root
  IdentityFile {place}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Desk:
    """A checkout where a person types what the page says, with a way by ssh to every machine."""

    def __init__(self, machines: Machines, place: Path) -> None:
        self._machines = machines
        self._place = place
        shared = place / "shared"
        for name, key in ((place, "key"), (shared, "host_key")):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(name / key)]
            subprocess.run(command, check=True)
        (shared / "key.pub").write_text((place / "key.pub").read_text())
        (shared / "sshd_config").write_text(SSHD)
        (place / "ssh_config").write_text(CLIENT.format(place=place))
        path_with({"p2psgd": PROGRAM}, place / ".venv" / "bin")
        (place / "systemd").symlink_to(CHECKOUT / "systemd")
        programs = {
            "ssh": f'exec {shutil.which("ssh")} -F {place}/ssh_config "$@"',
            "make": f"mkdir dist && cp {shared}/*.whl dist",  # the real one is tested by .ci/check-wheel
        }
        self._environment = {**os.environ, "PATH": path_with(programs, place / "bin")}

    def start(self, name: str) -> None:
        self._machines.start(name)
        code, words = self._machines.run(
            name, "rm -f ~root/.bashrc && mkdir -p /run/sshd && /usr/sbin/sshd -f /shared/sshd_config"
        )
        assert code == 0, words

    def type(self, commands: str) -> tuple[int, str]:
        """Return the exit code, and what is printed."""
        done = subprocess.run(
            [*self._machines.lan.within(0), "sh", "-euc", commands],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=self._place,
            env=self._environment,
        )
        print(commands, done.returncode, done.stdout, done.stderr, sep="\n", flush=True)
        return done.returncode, done.stdout

    def table(self, command: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit code, and the table's rows by host."""
        code, out = self.type(f"{command.strip()} --json")
        return code, {row["host"]: row for row in json.loads(out)}


def is_identical(machines: Machines) -> bool:
    """Return whether every node finds its replica equal to those of its four peers."""
    answers = [machines.run(name, "p2psgd digest")[1] for name in NAMES]
    print(*answers, sep="\n", flush=True)
    return all(words.count("identical (") == 4 for words in answers)


@pytest.mark.root
@pytest.mark.timeout(1500)
def test_up_brings_up_all_machines_but_the_one_that_is_away_and_again_changes_nothing(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("sshd", "ssh", "ssh-keygen")
    if not is_possible():
        pytest.skip("needs root, systemd, cgroup2 and Debian's python3 of this version")
    begin, table, down = blocks_of("ssh.md")
    with Machines(NAMES, tmp_path) as machines:
        desk = Desk(machines, tmp_path)
        with ThreadPoolExecutor() as threads:
            list(threads.map(desk.start, (NAMES[0], NAMES[1], NAMES[3])))
        *here, away = machines.lan.addresses
        # The recipe of the page would keep two cores busy for as long as the test takes.
        begin = begin.replace("--trainer speech", "--trainer digits")
        machines.lan.set_link(2, up=False)
        code, words = desk.type(begin)
        assert code == 75
        shown = [line.split() for line in table.splitlines()]
        assert [line.split() for line in words.splitlines()][-len(shown) :] == shown

        up = f"{begin.splitlines()[-1]} --parallel 3 --wait 240"
        (tmp_path / "hosts.txt").write_text("\n".join(machines.lan.addresses))
        machines.lan.set_link(2, up=True)
        desk.start(NAMES[2])
        code, rows = desk.table(up)
        assert code == 75
        assert rows[away]["state"] == "unreachable"
        assert "port 22: " in rows[away]["words"]
        for host, changed in zip(here, ("list of hosts", "list of hosts", INSTALLED, INSTALLED), strict=True):
            assert (rows[host]["state"], rows[host]["node"]) == ("ready", host)
            assert changed in rows[host]["changed"]

        desk.start(NAMES[4])
        code, rows = desk.table(up)
        assert code == 0
        assert {host: rows[host]["changed"] for host in here} == dict.fromkeys(here, "nothing")
        assert rows[away]["state"] == "ready"
        pids = [machines.run(name, "systemctl show -P MainPID p2psgd")[1] for name in NAMES]

        code, rows = desk.table(up)
        assert code == 0
        assert {row["changed"] for row in rows.values()} == {"nothing"}
        assert pids == [machines.run(name, "systemctl show -P MainPID p2psgd")[1] for name in NAMES]
        until(lambda: is_identical(machines), "replicas are identical", timeout_s=120)

        (tmp_path / "hosts.txt").write_text((tmp_path / "hosts.txt").read_text() + "\n# a comment\n")
        code, rows = desk.table(up)
        assert {row["changed"] for row in rows.values()} == {"list of hosts"}
        assert pids == [machines.run(name, "systemctl show -P MainPID p2psgd")[1] for name in NAMES]

        # A run that was cut short between what it had changed and the restart.
        machines.run(NAMES[0], "touch /etc/p2psgd/up.pending && rm /etc/p2psgd/up.sha256")
        code, rows = desk.table(up)
        assert code == 0
        first, *others = (rows[host]["changed"] for host in (*here, away))
        assert first.startswith("restarted")  # and its trainer is, too, if it had come to its end
        assert others == ["nothing"] * 4
        assert machines.run(NAMES[0], "ls /etc/p2psgd")[1].count("up.pending") == 0

        for changed in ("stopped", "nothing"):
            code, rows = desk.table(down)
            assert code == 0
            assert {(row["state"], row["changed"]) for row in rows.values()} == {("stopped", changed)}
