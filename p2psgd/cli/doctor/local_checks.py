"""Checks of this machine alone: memory, disk, port, hosts, descriptors and certificates."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from p2psgd.base import formatting
from p2psgd.base.aio import DESCRIPTORS_MIN, RESERVE_MAX, connections_end
from p2psgd.base.errors import P2psgdError, UsageError, words_of
from p2psgd.cli.doctor.findings import Finding, note, ok, problem
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.layout import inbox_bytes, outbox_bytes
from p2psgd.ipc.listener import control_path
from p2psgd.net.address import HOSTS_MAX, Address, UnknownNameError, hosts_of, is_own, look_up
from p2psgd.net.hosts import Hosts
from p2psgd.net.peer_sources.source import PeerSource
from p2psgd.net.tls import WARNED_DAYS, Credentials
from p2psgd.observe.status import NodeStatus, PeerState, read_status
from p2psgd.storage.votes import check_votes
from p2psgd.wire.mode import ASYNC

MEMORY: Final = "memory"
STATE: Final = "state"
PORT: Final = "port"
HOSTS: Final = "hosts"
DESCRIPTORS: Final = "descriptors"
TLS: Final = "tls"

# Bytes of memory for each weight in the largest case: daemon 4 for the coordinates, 4 for the copy that
# checkpoints and snapshots are made from and 4 for a second one or for the next weights of a dense ring; 16
# shared with the trainer of a dense ring for contributions, arrays and two rounds' sums (else 12, for the
# residual); trainer 4 for its working copy, 4 for a gradient and 4 for the delta. With a GPU the trainer's
# part is on the device. Measured with 20 million weights and one node: 35 and 18 beside what the processes
# take.
WEIGHT_EACH: Final = 12 + 16 + 12
PROCESSES_BYTES: Final = 128 * 1024 * 1024  # the code and data of two Python processes with numpy
LOG_BYTES: Final = 256 * 1024 * 1024  # --log-budget, unless it is told otherwise

CHECKPOINTS: Final = 3  # two are kept while the next is written
CHECKPOINT_EACH: Final = 8  # bytes on disk for each weight: coordinates and residual
DISK_LOG_BYTES: Final = 1024 * 1024 * 1024  # --log-disk-budget, unless it is told otherwise
STATUS_TIMEOUT_S: Final = 3.0
OPEN_AT_START: Final = 24  # descriptors of a daemon without links
PER_PEER: Final = 2  # descriptors, while one connection takes the place of another


@dataclass(frozen=True, slots=True)
class Available:
    """The memory that this machine gives, in bytes, and what limits it."""

    size: int
    limit: str


def bytes_needed(weights: int) -> int:
    """Return the most memory that daemon and trainer take together for a run of this size, in any mode."""
    rings = inbox_bytes(weights, ASYNC) + outbox_bytes(weights, ASYNC)
    return WEIGHT_EACH * weights + rings + LOG_BYTES + PROCESSES_BYTES


def check_memory(weights: int | None, available: Available | None) -> Finding:
    """Compare the memory that a run of this size takes with what is available."""
    if weights is None:
        return note(MEMORY, "not checked: how large the run is was not said", "--weights P")
    needed = bytes_needed(weights)
    what = f"{weights:,} weights take up to {formatting.size(needed)}"
    if available is None:
        return note(MEMORY, f"{what}; this machine does not say how much it has")
    words = f"{what}, {formatting.size(available.size)} are free ({available.limit})"
    if needed > available.size:
        mend = "end what else runs here, take a machine with more memory, or a smaller net"
        return problem(MEMORY, words, mend)
    return ok(MEMORY, f"{words}; a script's data come on top")


def find_available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Available | None:
    """Return the machine's free memory, or what is left of this process's control group if that is less."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    machine = Available(1024 * int(found[1]), "of the machine")
    try:
        own = re.search(r"^0::(/\S*)$", (proc / "self" / "cgroup").read_text(), re.MULTILINE)
    except OSError:
        return machine
    here = cgroups / (own[1].lstrip("/") if own else "")
    groups = [_left_of(each) for each in (here, *here.parents) if each.is_relative_to(cgroups)]
    return min([machine, *(each for each in groups if each is not None)], key=lambda each: each.size)


def _left_of(group: Path) -> Available | None:
    """Return what is left of a control group's limit; None if it has none."""
    try:
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        return Available(max(0, int(limit) - int(used)), "of the control group's limit")
    except (OSError, ValueError):
        return None


def check_state_directory(state: Path, weights: int | None, *, free_bytes: int | None = None) -> Finding:
    """Check that files can be written there, that votes there are whole, and the room; `free_bytes` of its
    disk are as they are by default.
    """
    place = state.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        words = f"{place} is not a directory, so {state} cannot be the state directory"
        return problem(STATE, words, "give another one with --state DIR, or P2PSGD_STATE=DIR")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"p2psgd")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        words = f"{place} cannot be written to: {words_of(error)}"
        mend = f"sudo install -d -o {os.geteuid()} -m 750 {state}, or another one with --state DIR"
        return problem(STATE, words, mend)
    try:
        check_votes(state)
    except UsageError as error:
        mend = "put back a whole copy of it, if there is one; if it cannot be read, be the node's user"
        return problem(STATE, str(error), mend)
    return _check_room(place, state, weights, free_bytes)


def disk_bytes_needed(weights: int) -> int:
    """Return what the state directory of a run of this size takes, without what a script keeps."""
    return CHECKPOINTS * CHECKPOINT_EACH * weights + DISK_LOG_BYTES


def _check_room(place: Path, state: Path, weights: int | None, free_bytes: int | None) -> Finding:
    if free_bytes is None:
        disk = os.statvfs(place)
        free_bytes = disk.f_bavail * disk.f_frsize
    words = f"{state} can be written to, {formatting.size(free_bytes)} are free on its disk"
    if weights is None:
        least, what = DISK_LOG_BYTES, "the log"
    else:
        least, what = disk_bytes_needed(weights), f"checkpoints of {weights:,} weights and the log"
    if free_bytes >= least:
        return ok(STATE, f"{words}; up to {formatting.size(least)} are for {what}")
    words = f"{words}, but up to {formatting.size(least)} are for {what}"
    mend = "another disk with --state DIR, or a smaller --log-disk-budget MIB (0: no log on disk)"
    if weights is None or free_bytes >= CHECKPOINTS * CHECKPOINT_EACH * weights:
        return note(STATE, words, mend)
    return problem(STATE, words, mend)


def describe_taken(listen: Address, words: str, status: NodeStatus | None) -> tuple[Finding, bool]:
    """Judge a port that cannot be had, as `words` say, and return whether it is a node of this machine that
    has it, by the `status` of its daemon.
    """
    if status is not None and status.listen.endswith(f":{listen.port}"):
        tail = f"; it waits: {status.waits}" if status.waits else ""
        linked = sum(peer.state is PeerState.CONNECTED for peer in status.peers)
        links = f"linked with {linked} of {formatting.counted(len(status.peers), 'peer')}"
        words = (
            f"the node {status.node} of this machine runs already on {listen}: {status.state}, {links}{tail}"
        )
        return note(PORT, words), True
    mend = f"a node? sudo p2psgd status; else sudo ss -ltnp 'sport = :{listen.port}' shows what listens there"
    return problem(PORT, words, mend), False


def daemon_status(state: Path | None) -> NodeStatus | None:
    """Return the status of the daemon that commands on this machine ask; None if none answers."""
    with (
        contextlib.suppress(P2psgdError, OSError),
        ControlClient(control_path(state), timeout_s=STATUS_TIMEOUT_S) as client,
    ):
        return read_status(client.request("status")["status"])
    return None


def check_hosts(source: PeerSource, addresses: Sequence[Address], hosts: Hosts, listen: Address) -> Finding:
    """Judge the list: does it name this machine, and which rank follows from that?

    `hosts` is what its `addresses` mean to the node that listens on `listen`.
    """
    if not addresses:
        mend = f"echo HOST[:PORT] >> {source}, a line for each machine"
        return problem(HOSTS, f"{source} names no host", mend if source.names_file else "see what it asks")
    lines = formatting.counted(len(addresses), "line" if source.names_file else "address")
    if not source.ordered:
        words = f"{source}: {lines}; members may come and go, so no place in it is a rank"
        return ok(HOSTS, words)
    if hosts.rank is not None:
        own, count = hosts.rank
        line = next((each for each in addresses if each not in hosts.peers), None)
        return ok(HOSTS, f"{source}: {lines}, {line} is this machine: rank {own}/{count}")
    if hosts.several:
        names = formatting.listed([str(each.host) for each in hosts.several])
        words = f"{source}: {lines}; {names} stands for several hosts, so no line gives a rank"
        return note(HOSTS, words, "give each trainer its --rank i/n")
    if hosts.near_misses:
        near = hosts.near_misses[0]
        words = f"{source} names this machine as {near}, but the node is to listen on port {listen.port}"
        mend = f"--listen {listen.host}:{near.port}, or port {listen.port} in that line"
        return problem(HOSTS, words, mend)
    words = f"{source}: {lines}, none of them is this node: its trainer will not know its rank"
    return note(HOSTS, words, "add this machine's line on all machines, or give its trainer --rank i/n")


async def each_host(hosts: Hosts, listening: Address, *, timeout_s: float) -> tuple[Address, ...]:
    """Return all addresses to dial, at most HOSTS_MAX: each line, or each host of a line that stands for
    several, without this node.
    """
    found: dict[Address, None] = {}
    for line in hosts.peers:
        if line not in hosts.several:
            found[line] = None
            continue
        try:
            several = hosts_of(await look_up(line, timeout_s=timeout_s))
        except UnknownNameError:
            found[line] = None
            continue
        found |= {host[0]: None for host in several if not any(is_own(each, [listening]) for each in host)}
    return tuple(found)[:HOSTS_MAX]


def descriptors_needed(peers: int) -> int:
    """Return a limit with which a daemon refuses no link to this many peers."""
    return max(DESCRIPTORS_MIN, OPEN_AT_START + PER_PEER * peers + RESERVE_MAX)


def check_descriptors(peers: int, hard: int | None = None) -> Finding:
    """Check the hard limit, to which a daemon raises its own; by default this process's."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    whom = formatting.counted(peers, "peer")
    if limit == resource.RLIM_INFINITY:
        return ok(DESCRIPTORS, f"any number of files may be open, also for {whom}")
    if limit >= DESCRIPTORS_MIN and connections_end(limit) >= OPEN_AT_START + PER_PEER * peers:
        return ok(DESCRIPTORS, f"{limit:,} files may be open, which is enough for {whom}")
    needed = descriptors_needed(peers)
    words = f"only {limit:,} files may be open (hard limit), {whom} may take {needed:,}"
    mend = f"raise the hard limit in /etc/security/limits.conf, or LimitNOFILE={needed} in the unit"
    return problem(DESCRIPTORS, words, mend)


def load_credentials(directory: Path, now: datetime) -> tuple[Credentials | None, Finding]:
    """Load a TLS directory, and judge how long it holds; None if a node would refuse it."""
    try:
        credentials = Credentials.load(directory)
    except UsageError as error:
        mend = f"p2psgd ca issue on the machine that holds the CA, then copy the node's files to {directory}"
        return None, problem(TLS, str(error), mend)
    days = (credentials.expires - now).days
    words = f"{credentials.name} of run {credentials.run}, certificates until {credentials.expires:%Y-%m-%d}"
    if days < WARNED_DAYS:
        mend = "p2psgd ca issue --renew on the machine that holds the CA, then copy the node's files here"
        return credentials, note(TLS, f"{words}, {days} days from now", mend)
    return credentials, ok(TLS, words)
