"""`p2psgd up` and `down` work on all machines of a list, a few at a time, and make a table of the outcomes.

One that fails is named in the table, and the rest go on.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode
from p2psgd.base.formatting import printable
from p2psgd.cli.up.payload import Payload, digest_of, pack
from p2psgd.cli.up.ssh import Remote, RemoteError
from p2psgd.net.address import Address

ASK_S: Final = 30.0
INSTALL_S: Final = 900.0  # pip may have to fetch everything
STOP_S: Final = 180.0  # more than TimeoutStopSec of the unit
LOOK_EVERY_S: Final = 1.0
STATUS: Final = "/opt/p2psgd/bin/p2psgd status --json"
TRAINER_FAILED: Final = "its trainer failed:"  # on a line of its own after the status
STAMP: Final = "/etc/p2psgd/up.sha256"
UNREACHABLE: Final = "unreachable"
FAILED: Final = "failed"
READY: Final = "ready"
STOPPED: Final = "stopped"


@dataclass(frozen=True)
class Row:
    """A line of the table: what is known of one machine."""

    host: str
    node: str = ""
    state: str = ""
    changed: str = ""
    words: str = ""

    @property
    def good(self) -> bool:
        return self.state in (READY, STOPPED)


@dataclass(frozen=True)
class Machine:
    """A machine of the list, and the files that its node gets."""

    address: Address
    remote: Remote
    files: dict[str, bytes]


def bring_up(
    machines: Sequence[Machine], payload: Payload, *, parallel: int, wait_s: float, say: Callable[[str], None]
) -> list[Row]:
    """Install and start a node on every machine, and wait until each is ready, `wait_s` at most."""
    with _threads(parallel) as (threads, stop):
        rows = list(threads.map(partial(_install, payload=payload, say=say, stop=stop), machines))
        deadline = time.monotonic() + wait_s
        ask = partial(_wait, trainer=payload.trainer, deadline=deadline, stop=stop)
        return list(threads.map(ask, machines, rows))


def take_down(remotes: Sequence[Remote], *, parallel: int, say: Callable[[str], None]) -> list[Row]:
    """Stop the nodes and their trainers, and do not have them start with the machine; their state stays."""
    with _threads(parallel) as (threads, stop):
        return list(threads.map(partial(_stop, say=say, stop=stop), remotes))


@contextmanager
def _threads(parallel: int) -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """Give threads, and an event for their commands, which are stopped by Ctrl+C."""
    stop = threading.Event()
    with ThreadPoolExecutor(parallel) as threads:
        try:
            yield threads, stop
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _install(machine: Machine, *, payload: Payload, say: Callable[[str], None], stop: threading.Event) -> Row:
    host, remote = machine.remote.host, machine.remote
    digest = digest_of(machine.files, payload.trainer)
    ask = f"cat {STAMP} 2>/dev/null; systemctl is-active p2psgd.service; {_ask_trainer(payload.trainer)}"
    try:
        stamp, *active = remote.run(ask, timeout_s=ASK_S, stop=stop).split() or [""]
        if stamp == digest and set(active) == {"active"}:
            return Row(host, changed="nothing")
        say(f"{host}: installs")
        unpack = 'd=$(mktemp -d) && trap \'rm -rf "$d"\' EXIT && tar -x -C "$d" && cd "$d"'
        install = f"sh install.sh {shlex.quote(payload.trainer)} && echo {digest} >{STAMP}"
        script = f"umask 022; rm -f {STAMP}; {unpack} && {install}"
        stdin = pack(machine.files)
        changed = remote.run(script, timeout_s=INSTALL_S, stdin=stdin, root=True, stop=stop)
        return Row(host, changed=", ".join(printable(line) for line in changed.splitlines()) or "nothing")
    except RemoteError as error:
        return _failure(host, error)


def _wait(machine: Machine, row: Row, *, trainer: str, deadline: float, stop: threading.Event) -> Row:
    """Ask a node until it is ready, its trainer has failed for good, or the time is over."""
    ask = STATUS
    if trainer:
        unit = f"p2psgd-trainer@{trainer}.service"
        code = f"$(systemctl show -P ExecMainStatus {unit})"
        ask += f'; code=$?; systemctl is-failed --quiet {unit} && echo "{TRAINER_FAILED} {code}"; exit $code'
    while not row.state:
        try:
            said = machine.remote.run(ask, timeout_s=ASK_S, root=True, stop=stop)
            status, failed, code = said.partition(TRAINER_FAILED)
            row = _judge(row, status, trains=bool(trainer))
            if failed:
                words = f"its trainer ended with exit code {printable(code.strip())}: journalctl -u {unit}"
                row = replace(row, state=FAILED, words=words)
        except RemoteError as error:
            row = replace(row, words=str(error))
        if not row.state and time.monotonic() > deadline:
            row = replace(row, state="not ready")
        elif not row.state:
            stop.wait(LOOK_EVERY_S)
    return row


def _judge(row: Row, said: str, *, trains: bool) -> Row:
    """Return the row of a node with this status: ready with a trainer that trains, or to take one."""
    try:
        status = json.loads(said)
        node, ready, waits = str(status["node"]), status.get("ready"), str(status.get("not_ready") or "")
        state, trainer = str(status["state"]), status.get("trainer") or {}
        came = bool(trainer.get("attached") or trainer.get("finished"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return replace(row, words="its status cannot be read: is it another version?")
    if trains:
        done, words = bool(ready) and came, waits or ("its trainer has not attached" if ready else state)
    else:
        done, words = ready in (True, None), "" if ready else waits or state
    return replace(
        row,
        node=printable(node),
        state=READY if done else "",
        words=printable("" if done and ready else words),
    )


def _stop(remote: Remote, *, say: Callable[[str], None], stop: threading.Event) -> Row:
    script = (
        "active=$(systemctl is-active p2psgd.service); for unit in $(systemctl list-units --all --plain "
        "--no-legend 'p2psgd-trainer@*' | cut -d ' ' -f 1) p2psgd.service; do "
        "systemctl --quiet disable --now $unit 2>/dev/null || true; done; rm -f " + STAMP + "; "
        'systemctl --quiet is-active p2psgd.service && { echo "the service does not stop" >&2; exit 1; }; '
        "echo $active"
    )
    try:
        say(f"{remote.host}: stops")
        before = remote.run(script, timeout_s=STOP_S, root=True, stop=stop).strip()
        return Row(remote.host, state=STOPPED, changed="stopped" if before == "active" else "nothing")
    except RemoteError as error:
        return _failure(remote.host, error)


def _failure(host: str, error: RemoteError) -> Row:
    return Row(host, state=UNREACHABLE if error.unreachable else FAILED, words=printable(str(error)))


def _ask_trainer(trainer: str) -> str:
    """Return a script that prints `active` for a trainer that runs or has done its work."""
    if not trainer:
        return "true"
    unit = f"p2psgd-trainer@{trainer}.service"
    done = f'"$(systemctl show -P Result {unit}) $(systemctl show -P ExecMainExitTimestampMonotonic {unit})"'
    return (
        f"if systemctl is-active --quiet {unit}; then echo active; else case {done} in "
        '"success 0") echo inactive;; "success "*) echo active;; *) echo inactive;; esac; fi'
    )


def render(rows: Sequence[Row]) -> str:
    """Render the table, for people."""
    cells = [("host", "node", "state", "changed", "")]
    cells += [(row.host, row.node or "-", row.state, row.changed or "-", row.words) for row in rows]
    wide = [max(len(row[column]) for row in cells) for column in range(4)]
    return "\n".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, wide, strict=False)), row[4]]).rstrip()
        for row in cells
    )


def exit_code(rows: Sequence[Row]) -> ExitCode:
    """Return OK if every machine is as it should be, else TEMPORARY: the same command goes on from here."""
    return ExitCode.OK if all(row.good for row in rows) else ExitCode.TEMPORARY


def node_name(address: Address) -> str:
    """Return the name under which a machine's node has its certificate: the host in the list."""
    return address.host.replace(":", "-").replace("%", "-")


def default_wheel() -> Path:
    """Return where `make wheel` leaves the wheel in a checkout."""
    found = sorted(Path("dist").glob("p2psgd-*.whl"))
    return found[-1] if len(found) == 1 else Path("dist")
