"""What `p2psgd up` copies, what it refuses, and what it makes of a machine that is away; a script stands
for ssh here. tests/engines/test_ssh.py uses the real one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.cli.up.command import up
from p2psgd.cli.up.fleet import (
    FAILED,
    READY,
    TRAINER_FAILED,
    UNREACHABLE,
    Machine,
    Row,
    bring_up,
    exit_code,
    node_name,
    render,
    take_down,
)
from p2psgd.cli.up.payload import Payload, digest_of, pack, with_port
from p2psgd.cli.up.ssh import Remote
from p2psgd.net.address import Address
from tests.daemons import until
from tests.operations.machines import CHECKOUT

UNITS = CHECKOUT / "systemd"
# The last argument is the command, the one before it the machine.
SSH = """#!/bin/sh
for word; do host=$last last=$word; done
echo "$host" >>{place}/asked
case $host in
  away) echo "ssh: connect to host away port 22: No route to host" >&2; exit 255 ;;
esac
case $last in
  *status*) cat {place}/status ;;
  *install.sh*) cat >{place}/given-$host.tar; echo "program"; echo "started" ;;
  *disable*) echo active ;;
  *) cat {place}/stamp ;;
esac
"""


@pytest.fixture
def ssh(tmp_path: Path) -> tuple[str, ...]:
    program = tmp_path / "ssh"
    program.write_text(SSH.format(place=tmp_path))
    program.chmod(0o755)
    (tmp_path / "stamp").write_text("inactive\n")
    status = {"node": "a", "state": "training", "ready": True, "not_ready": "", "trainer": {"attached": True}}
    (tmp_path / "status").write_text(json.dumps(status))
    return (str(program),)


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    (tmp_path / "p2psgd-1.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "hosts.txt").write_text("a\naway\n")
    wheel = tmp_path / "p2psgd-1.0-py3-none-any.whl"
    return Payload.read(wheel, UNITS, tmp_path / "hosts.txt", config=None, trainer="speech", trainer_env=None)


def machine(payload: Payload, host: str, ssh: tuple[str, ...]) -> Machine:
    return Machine(Address(host, 7315), Remote(host, ssh), dict(payload.files))


def test_a_machine_that_is_away_is_named_and_the_others_get_their_files(
    tmp_path: Path, payload: Payload, ssh: tuple[str, ...]
) -> None:
    machines = [machine(payload, host, ssh) for host in ("a", "away")]
    one, other = bring_up(machines, payload, parallel=2, wait_s=0.0, say=lambda _: None)
    assert (one.state, one.changed, one.node) == (READY, "program, started", "a")
    assert other.state == UNREACHABLE
    assert "port 22: No route to host" in other.words
    assert exit_code([one, other]) is ExitCode.TEMPORARY
    with tarfile.open(tmp_path / "given-a.tar") as given:
        found = {entry.name: entry.mode for entry in given}
    assert set(found) == set(payload.files)
    assert set(found.values()) == {0o600}


def test_a_machine_that_has_all_is_asked_and_nothing_more(
    tmp_path: Path, payload: Payload, ssh: tuple[str, ...]
) -> None:
    one = machine(payload, "a", ssh)
    (tmp_path / "stamp").write_text(f"{digest_of(one.files, 'speech')}\nactive\nactive\n")
    (row,) = bring_up([one], payload, parallel=1, wait_s=0.0, say=lambda _: None)
    assert (row.state, row.changed) == (READY, "nothing")
    assert not (tmp_path / "given-a.tar").exists()
    (tmp_path / "stamp").write_text(f"{digest_of(one.files, 'speech')}\nactive\nfailed\n")
    (row,) = bring_up([one], payload, parallel=1, wait_s=0.0, say=lambda _: None)
    assert row.changed == "program, started", "its trainer does not run"


def test_a_node_that_is_not_ready_in_time_says_what_it_waits_for(
    tmp_path: Path, payload: Payload, ssh: tuple[str, ...]
) -> None:
    status = {"node": "a\x1b", "state": "joining", "ready": False, "not_ready": "for a donor"}
    (tmp_path / "status").write_text(json.dumps(status))
    (row,) = bring_up([machine(payload, "a", ssh)], payload, parallel=1, wait_s=0.0, say=lambda _: None)
    assert (row.state, row.words) == ("not ready", "for a donor")
    assert "\x1b" not in row.node
    for nonsense in ("", "[]", '{"node": 1}'):
        (tmp_path / "status").write_text(nonsense)
        (row,) = bring_up([machine(payload, "a", ssh)], payload, parallel=1, wait_s=0.0, say=lambda _: None)
        assert "its status cannot be read" in row.words


def test_a_trainer_that_failed_or_has_not_come_is_no_success(
    tmp_path: Path, payload: Payload, ssh: tuple[str, ...]
) -> None:
    (tmp_path / "status").write_text(
        json.dumps({"node": "a", "state": "waiting", "ready": True, "trainer": {"attached": False}})
    )
    (row,) = bring_up([machine(payload, "a", ssh)], payload, parallel=1, wait_s=0.0, say=lambda _: None)
    assert (row.state, row.words) == ("not ready", "its trainer has not attached")
    with (tmp_path / "status").open("a") as status:
        status.write(f"\n{TRAINER_FAILED} 64\n")
    (row,) = bring_up([machine(payload, "a", ssh)], payload, parallel=1, wait_s=60.0, say=lambda _: None)
    assert row.state == FAILED
    assert row.words == "its trainer ended with exit code 64: journalctl -u p2psgd-trainer@speech.service"


def test_ctrl_c_stops_what_runs_on_the_machines(tmp_path: Path, payload: Payload) -> None:
    program = tmp_path / "ssh"
    program.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 600\n"
    )
    program.chmod(0o755)

    def interrupt() -> None:
        until((tmp_path / "pid").exists, "ssh runs")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        take_down([Remote("a", (str(program),))], parallel=2, say=lambda _: None)
    interrupter.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_more_machines_than_allowed_are_asked_at_once(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nls {tmp_path}/busy >>{tmp_path}/seen\n: >{tmp_path}/busy/$$\n"
                       f"sleep 0.2\nrm {tmp_path}/busy/$$\necho inactive\n")  # fmt: skip
    program.chmod(0o755)
    (tmp_path / "busy").mkdir()
    rows = take_down([Remote(str(n), (str(program),)) for n in range(6)], parallel=1, say=lambda _: None)
    assert [row.changed for row in rows] == ["nothing"] * 6
    assert not (tmp_path / "seen").read_text().split()


def test_the_table_has_a_line_for_each_machine_whose_reasons_come_last() -> None:
    rows = [Row("10.0.0.1", "a", READY, "nothing"), Row("b", state=UNREACHABLE, words="no route")]
    head, first, second = render(rows).splitlines()
    assert head.split() == ["host", "node", "state", "changed"]
    assert first.split() == ["10.0.0.1", "a", "ready", "nothing"]
    assert second.split() == ["b", "-", "unreachable", "-", "no", "route"]


def test_options_get_the_port_of_the_list_unless_they_have_one() -> None:
    assert with_port(b'peers = "hosts.txt"\n', 7315) == b'peers = "hosts.txt"\n'
    assert with_port(b'peers = "hosts.txt"\n', 7400).startswith(b'listen = "0.0.0.0:7400"\n')
    assert with_port(b'listen = "10.0.0.1:9"\n', 7400) == b'listen = "10.0.0.1:9"\n'
    with pytest.raises(UsageError, match="is not TOML"):
        with_port(b"listen =", 7400)


def test_the_digest_covers_every_file_and_the_trainer() -> None:
    files = {"a": b"1", "b": b"2"}
    others = [{"a": b"1"}, {"a": b"2", "b": b"1"}, {"a": b"1", "c": b"2"}]
    digests = {digest_of(each, "") for each in (files, *others)} | {digest_of(files, "speech")}
    assert len(digests) == 5
    with tarfile.open(fileobj=io.BytesIO(pack(files))) as packed:
        assert packed.getnames() == ["a", "b"]


def test_a_wheel_must_be_one(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("a\n")
    for wheel, count in ((tmp_path, 0), (tmp_path / "none.whl", 0)):
        with pytest.raises(UsageError, match=rf"one file p2psgd-\*.whl, and there are {count}: make wheel"):
            Payload.read(wheel, UNITS, hosts, config=None, trainer="", trainer_env=None)
    for name in ("p2psgd-1-py3-none-any.whl", "numpy-2-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
    read = Payload.read(tmp_path, UNITS, hosts, config=None, trainer="", trainer_env=None)
    assert {"p2psgd-1-py3-none-any.whl", "wheels/numpy-2-py3-none-any.whl"} <= set(read.files)


def test_what_cannot_be_right_is_refused_before_any_machine_is_asked(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("a:7315\na:7316\n")
    with pytest.raises(UsageError, match="names a with several ports"):
        up(hosts)
    with pytest.raises(UsageError, match="a name of letters"):
        up(hosts, trainer="a; reboot")
    with pytest.raises(UsageError, match="--trainer-env is for"):
        up(hosts, trainer_env=hosts)
    hosts.write_text("# nobody\n")
    with pytest.raises(UsageError, match="names no host"):
        up(hosts)
    hosts.write_text("a\n")
    for ssh in (" ", "'"):
        with pytest.raises(UsageError, match="--ssh"):
            up(hosts, ssh=ssh)


def test_a_node_is_called_by_its_address_in_the_list() -> None:
    assert node_name(Address("10.0.0.1", 7315)) == "10.0.0.1"
    assert node_name(Address("fe80::1%eth0", 7315)) == "fe80--1-eth0"


def test_the_script_for_a_machine_is_one_that_a_shell_reads() -> None:
    script = CHECKOUT / "p2psgd" / "cli" / "up" / "install.sh"
    assert os.spawnlp(os.P_WAIT, "sh", "sh", "-n", str(script)) == 0


@pytest.mark.usefixtures("payload")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssh": "nosuchssh -4"}, "--ssh 'nosuchssh -4': there is no command nosuchssh"),
        (
            {"units": "nowhere"},
            "--units (systemd/ of a checkout): there is no file nowhere/p2psgd.service",
        ),
        ({"trainer_env": "nofile"}, "--trainer-env: there is no file nofile"),
        ({"config": "nofile"}, "cannot read the configuration nofile: no such file"),
        ({"config": "bad.toml"}, "in bad.toml, there is no option 'lissten'"),
    ],
)
def test_what_the_desk_lacks_is_named_before_any_machine_is_asked(
    tmp_path: Path, ssh: tuple[str, ...], options: dict[str, str], words: str
) -> None:
    (tmp_path / "bad.toml").write_text('lissten = "0.0.0.0:7400"\n')
    given: dict[str, Any] = {"units": UNITS, "ssh": ssh[0], "trainer": "speech"}
    given |= {name: value if name == "ssh" else Path(value) for name, value in options.items()}
    with contextlib.chdir(tmp_path), pytest.raises(UsageError, match=re.escape(words)) as raised:
        up(Path("hosts.txt"), wheel=Path("p2psgd-1.0-py3-none-any.whl"), **given)
    assert raised.value.exit_code is ExitCode.CONFIGURATION
    assert not (tmp_path / "asked").exists()
