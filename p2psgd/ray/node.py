"""A node as a Ray actor, which holds the daemon, and by it the trainer, as child processes.

The driver (driver.py) looks at each actor about twice a second, and a look is all that an actor does for it:
it brings what the node must know, and returns what is known of the node. Ray repeats a look whose actor has
died in the next incarnation of that actor, on whichever machine. An incarnation that the driver has not seen
starts no daemon, since the order is for the one before. The daemon ends with its actor, and its state stays
on the disk of the machine: an actor that finds state goes on with it, and one that does not is a new node.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import safetensors.numpy

from p2psgd.base.errors import FINAL, ExitCode, P2psgdError, UsageError
from p2psgd.cli.local.cluster import LocalDaemon, spawn
from p2psgd.cli.local.output import LOG_NAME, ScriptOutput
from p2psgd.cli.local.verify import NodeReplica
from p2psgd.cli.weights_file import fetch_arrays, fetch_replica
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path, default_state_directory
from p2psgd.ipc.script_state import end_of, may_differ, trained_weights
from p2psgd.net.address import PORT_DEFAULT
from p2psgd.net.tls import write_key
from p2psgd.storage.files import make_directory, numbered
from p2psgd.storage.identity import is_locked, read_id
from p2psgd.storage.votes import read_cluster_id
from p2psgd.wire import codec
from p2psgd.wire.messages import MEMBERS_MAX, Fields

ANSWER_LIMIT_S: Final = 2.0  # of the daemon; a healthy one answers within milliseconds
STOP_LIMIT_S: Final = (
    80.0  # a trainer ends within 10 s, the daemon flushes for up to 30 s, and may save as long
)
CLAIM_LIMIT_S: Final = 20.0  # for an actor of an earlier call to end, whose driver has gone
PORTS: Final = 256  # of which a node takes the first free one; machines with a node each all take the first
NAME: Final = "node"  # here; the driver gives it its own
CLAIM_NAME: Final = "actor.lock"  # the daemon has a lock of its own, which it may keep for a while
PEERS_NAME: Final = "peers.txt"
TLS_NAME: Final = "tls"
# Ray kills the children of an actor that it ends, and a daemon that is killed has not written what it holds.
# So the child is a shell, which passes SIGTERM on. The daemon ends in good order when it or the actor does.
SHELL: Final = """
python=$1; shift
"$python" -m p2psgd.cli.child "$0,$$" "" "$@" & daemon=$!
trap 'kill -TERM $daemon; stopping=1' TERM
wait $daemon; code=$?
[ -z "$stopping" ] || { wait $daemon; code=$?; }  # the first one has ended with the signal
exit $code
"""
SCRIPT_NAME: Final = "script"  # a directory of its own: the script may be called as a file of the daemon is


@dataclass(frozen=True, kw_only=True)
class Job:
    """The part of an order that all nodes of a run have in common."""

    run: str  # names the directory of their states
    call: str  # tells the actors of this call of p2psgd.ray.run from those of others
    script: bytes
    script_name: str
    arguments: tuple[str, ...]
    state: str | None  # where that directory is, on each machine; None: in this user's state directory
    failure_timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order to start: what a node must know, for one incarnation of its actor."""

    incarnation: str
    expect: int  # nodes that begin the run
    peers: tuple[str, ...]
    rank: str  # "" where nodes come and go
    tls: Mapping[str, bytes]  # key and certificates by file, for the id that this incarnation has reported


@dataclass(frozen=True, kw_only=True)
class Look:
    """The result of a look: what is known of a node."""

    incarnation: str
    machine: str
    address: str  # where its daemon listens
    state: str  # its directory on the machine
    node: int | None  # the id in its state directory; None: it has none yet
    cluster_id: int | None = None  # of the run that the state is of; None: of none yet, or the daemon runs
    status: Fields | None = None  # None: its daemon does not answer
    waits: str = ""
    exit_code: int | None = None  # of a daemon that has ended, and in words how, with its last line
    ending: str = ""
    report: tuple[str, ...] = ()  # what its script printed last, if a person must act
    printed: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Return where its state is, as scp has it."""
        return f"{self.machine}:{self.state}"


class Sum(NamedTuple):
    """A node's replica, as far as others are compared with it: SHA-256 stands for the bytes."""

    mode: str
    quantum_log2: int
    digest: int  # of the weights, as their daemon vouches for it
    is_right: bool  # the replica has the digest that the daemon says
    sha256: str
    trained: str = ""  # SHA-256 of the weights that the script keeps, if it does,
    ended: str = ""  # and what they are of; only weights of the same must be equal


def are_equal(sums: Collection[Sum], *, interrupted: bool) -> bool:
    """Return whether these stand for equal replicas. If the caller has `interrupted` the run, weights that
    scripts keep may differ where they are of different ends of the scripts.
    """
    if interrupted and may_differ((each.ended, each.trained) for each in sums):
        sums = [each._replace(trained="", digest=0) for each in sums]
    return len({each._replace(ended="", is_right=True) for each in sums}) == 1


class NodeActor:
    """A node of the run; Ray makes an actor of this class."""

    def __init__(self, job: Job) -> None:
        import ray.util

        self._job = job
        base = Path(job.state).expanduser() if job.state else default_state_directory() / "ray"
        self._home, self._claim = claim_state(base / job.run, job.call)
        self._incarnation = secrets.token_hex(8)
        # Bound for as long as the actor is there, so that no other one of this machine chooses it.
        self._port, self._address = bind_port(ray.util.get_node_ip_address())
        self._daemon: LocalDaemon | None = None
        self._output = ScriptOutput({NAME: self._home / LOG_NAME})

    def look(self, order: Order | None) -> Look:
        """Start the daemon if it is time for it, and return what is known of the node."""
        known = Look(
            incarnation=self._incarnation,
            machine=socket.gethostname(),
            address=self._address,
            state=str(self._home),
            node=read_id(self._home),
        )
        if self._daemon is None:
            known = replace(known, cluster_id=read_cluster_id(self._home))
            if order is None or order.incarnation != self._incarnation:
                return known
            if is_locked(self._home):
                return replace(known, waits="the daemon of its former incarnation has not ended yet")
            self._daemon = self._start(order)
        code, known = self._daemon.exit_code, replace(known, printed=tuple(self._output.read()))
        if code is not None:
            words = f": {self._daemon.last_words}" if self._daemon.last_words else ""
            report = tuple(self._daemon.report) if code in FINAL else ()
            return replace(known, exit_code=code, ending=f"{self._daemon.ending}{words}", report=report)
        with suppress(P2psgdError), self._client(ANSWER_LIMIT_S) as client:
            return replace(known, status=client.request("status")["status"])
        return replace(known, waits="its daemon has not answered yet")

    def finish(self) -> None:
        """Ask the trainer to end after its mini-batch."""
        with suppress(P2psgdError), self._client(ANSWER_LIMIT_S) as client:
            client.request("finish")

    def sum_of_replica(self, key: int) -> Sum:
        """Return what stands for the replica's bytes; `key` is the run's key of the digest."""
        with self._client() as client:
            answer, coordinates, script = fetch_replica(client)
        trained = trained_weights(script, answer.weights)
        replica = NodeReplica(
            NAME, answer.mode, answer.quantum_log2, answer.digest, coordinates, answer.weights, trained
        )
        return Sum(
            answer.mode,
            answer.quantum_log2,
            replica.content_digest,
            codec.digest_coordinates(coordinates, key) == answer.digest,
            hashlib.sha256(coordinates.tobytes()).hexdigest(),
            "" if trained is None else hashlib.sha256(trained.tobytes()).hexdigest(),
            end_of(script),
        )

    def weights(self) -> bytes:
        """Return the weights, and the buffers of the node's script, as a safetensors file."""
        with self._client() as client:
            made = fetch_arrays(client)
        return safetensors.numpy.save(made.arrays | made.buffers)

    def stop(self, *, remove: bool) -> str:
        """Stop the daemon, and remove its state if that is wanted; return what it printed last if it did not
        end well.
        """
        if self._daemon is None:
            return ""
        self._daemon.process.send_signal(signal.SIGTERM)
        try:
            code = self._daemon.process.wait(STOP_LIMIT_S + 2 * self._job.failure_timeout_s)
        except subprocess.TimeoutExpired:
            self._daemon.process.kill()
            return "its daemon did not stop and was killed"
        if remove and code == ExitCode.OK:
            shutil.rmtree(self._home, ignore_errors=True)
            with suppress(OSError):
                self._home.parent.rmdir()
        return "" if code == ExitCode.OK else f"its daemon {self._daemon.ending}: {self._daemon.last_words}"

    def _start(self, order: Order) -> LocalDaemon:
        script = self._home / SCRIPT_NAME / self._job.script_name
        make_directory(script.parent)
        script.write_bytes(self._job.script)
        peers = self._home / PEERS_NAME
        peers.write_text("".join(f"{address}\n" for address in order.peers))
        make_directory(self._home / TLS_NAME, mode=0o700)
        for name, content in order.tls.items():
            (self._home / TLS_NAME / name).unlink(missing_ok=True)
            write_key(self._home / TLS_NAME / name, content)
        trainer = shlex.join([sys.executable, "-u", str(script), *self._job.arguments])
        command = ["/bin/sh", "-c", SHELL, str(os.getpid()), sys.executable, "node"]
        # A list that is asked for again, and gives no ranks, as it is another one for each node.
        command += ["--peers", f"exec:cat {shlex.quote(str(peers))}", "--bootstrap-expect", str(order.expect)]
        command += ["--rank", order.rank] if order.rank else []
        command += ["--listen", self._address, "--tls", str(self._home / TLS_NAME)]
        command += ["--state", str(self._home), "--failure-timeout", f"{self._job.failure_timeout_s:g}"]
        command += ["--log-format", "text", "--trainer", trainer]
        return LocalDaemon(NAME, self._home, spawn(command, self._home, _environment(os.environ)))

    def _client(self, timeout_s: float | None = None) -> ControlClient:
        place = control_path(self._home)
        return ControlClient(place) if timeout_s is None else ControlClient(place, timeout_s=timeout_s)


def claim_state(place: Path, call: str, *, limit_s: float = CLAIM_LIMIT_S) -> tuple[Path, int]:
    """Return the first of the run's state directories here that no actor of this call has, and a lock that
    keeps it: a node's state is its machine's, so whichever actor Ray puts there goes on with it. A new
    directory is the last choice.

    UsageError if an actor of another call still has one after limit_s: a node beside it would begin a run of
    its own.
    """
    deadline = time.monotonic() + limit_s
    for number in [*numbered(place, "state-", ""), *range(MEMBERS_MAX)]:
        home = place / f"state-{number}"
        make_directory(home)
        claim = os.open(home / CLAIM_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not _lock(claim):
            if os.pread(claim, len(call), 0) == call.encode():
                os.close(claim)
                break
            if time.monotonic() > deadline:
                os.close(claim)
                raise UsageError(
                    f"another call of p2psgd.ray.run uses {home}: wait for its end, or give another name",
                    ExitCode.TEMPORARY,
                )
            time.sleep(0.1)
        else:
            os.pwrite(claim, call.encode(), 0)
            return home, claim
    raise UsageError(f"{place} has more than {MEMBERS_MAX} state directories in use", ExitCode.CONFIGURATION)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def bind_port(host: str) -> tuple[socket.socket, str]:
    """Return a socket that is bound and does not listen, and its address: at p2psgd's own port if that is
    free, or else at one of the next.
    """
    v6 = ":" in host
    for port in range(PORT_DEFAULT, PORT_DEFAULT + PORTS):
        held = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
        try:
            held.bind((host, port))
        except OSError:
            held.close()
        else:
            # The daemon may listen there, which asks for the same; an actor that binds as above may not.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return held, f"[{host}]:{port}" if v6 else f"{host}:{port}"
    raise UsageError(f"no port of {host} from {PORT_DEFAULT} to {port} is free", ExitCode.TEMPORARY)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the daemon's environment: Ray's, with the directory of the job's files, where modules are."""
    path = os.pathsep.join(filter(None, [os.getcwd(), environment.get("PYTHONPATH")]))
    kept = {key: value for key, value in environment.items() if key not in ("P2PSGD_CONTROL", "P2PSGD_STATE")}
    return kept | {"PYTHONPATH": path}
