"""The rendezvous of torchrun's agents by the members of a run of p2psgd: `torchrun --rdzv-backend p2psgd`.

torchrun's own rendezvous (c10d) is a store on one machine, and a job ends with it. Here the agreed fact is
the view of the daemons, which needs none in particular: the agents of its members form a world, ranked in the
order of the nodes' ids, and form another one when the members change. An agent is the trainer of its node's
daemon, for a run of one weight that nobody changes: it is there for its members alone. So agents ask for the
removal of members that are silent.

What agents must say to each other (they have arrived, workers must be started anew) they say in a store on
the first member, at its address as each daemon knows it. It holds nothing that has to outlive it: when that
member is gone, the next view has another first one, and its agent opens an empty store. All members must
arrive, so that no two parts of a run form a world each.

Not here: the workers' own store, which torchrun lets the first worker open; what workers keep of their work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

import numpy as np
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.utils.distributed import get_free_port

from p2psgd.base.errors import MEETING, P2psgdError, UsageError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.wire.messages import Fields

BACKEND: Final = "p2psgd"
PORT: Final = 29400  # of the store on the first member; that of torchrun's c10d, which it replaces
JOIN_TIMEOUT_S: Final = 600  # until all members have arrived; torchrun's own default
KNOWN: Final = frozenset({"port", "join_timeout", "two_nodes", "timeout"})  # torchrun adds the last itself
POLL_S: Final = 0.2  # while a world forms
SILENT_TIMEOUTS: Final = 2  # failure timeouts after which a member is taken for dead, as a joiner would do it
LOOK_S: Final = 1.0  # between looks at the members while workers run: about as often as p2psgd top asks
CONNECT_S: Final = 2  # to a store
ANSWER_S: Final = 10.0  # of a store, after which its host is given up
READ_S: Final = 60  # for what another agent is about to write

LOST: Final = (RuntimeError, RendezvousConnectionError)  # what a store raises, or the wait for it

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class World:
    """The members of a view that form a world; equal if they are the same nodes in the same incarnations."""

    incarnations: tuple[str, ...]  # of the members, in the order of their ids
    rank: int | None = field(compare=False)  # of this node; None if it is not among them
    names: tuple[str, ...] = field(compare=False)
    host: str = field(compare=False)  # of the first member, as this node reaches it; empty: unknown

    @property
    def key(self) -> str:
        """Return a short name for it."""
        return hashlib.sha256(" ".join(self.incarnations).encode()).hexdigest()[:16]


def world_of(status: Fields, *, nodes_max: int) -> World:
    """Return the world that a daemon's status shows: the first `nodes_max` members of its view.

    Raises:
        RendezvousStateError: there are more members than a status lists.
    """
    view = status.get("view") or {"members": [], "members_total": 0}
    members = view["members"]
    if nodes_max > len(members) < view["members_total"]:
        raise RendezvousStateError(
            f"the view has {view['members_total']} members, of which the daemon lists {len(members)}: give"
            f" --nnodes with at most {len(members)}"
        )
    members = members[:nodes_max]
    rank = next((place for place, member in enumerate(members) if member["own"]), None)
    addresses = {peer["id"]: peer["address"] for peer in status["peers"]}
    address = addresses.get(members[0]["id"], "") if members else ""
    return World(
        incarnations=tuple(f"{member['id']}.{member['incarnation']}" for member in members),
        rank=rank,
        names=tuple(member["node"] for member in members),
        host="localhost" if rank == 0 else address.rpartition(":")[0].strip("[]"),
    )


# ----------------------------------------------------------------------------
# A meeting: the agents of one world in a store on the first member.
#
# Rounds are numbered. An agent is once in a round: one that comes again, since its workers have failed or it
# was started anew, opens the next one, to which the others follow. A round is complete when all are in it.


class Meeting:
    """A meeting of the agents of a world, with this one in its last round.

    A call raises RuntimeError if the store is gone, and RendezvousConnectionError if it is silent: the
    store's own calls wait for ever for a machine that has lost its power.
    """

    def __init__(self, store: Store, run_id: str, world: World) -> None:
        self.world = world
        self.round = -1
        self._closing = PrefixStore(run_id, store)
        self._store = PrefixStore(f"{run_id}/{world.key}", store)

    def join(self) -> None:
        """Come to the round that is open, or open one if this node has been in that already."""

        def come() -> int:
            place = self.world.rank
            number: int = self._store.add("round", 0)
            while self._store.add(f"{number}/{place}", 1) > 1:
                self._store.compare_set("round", str(number), str(number + 1))
                number = self._store.add("round", 0)
            self._store.add(f"{number}/arrived", 1)
            return number

        self.round = _within(ANSWER_S, come)

    @property
    def is_over(self) -> bool:
        """Return whether an agent has opened another round."""
        return _within(ANSWER_S, lambda: bool(self._store.add("round", 0) != self.round))

    @property
    def is_complete(self) -> bool:
        """Return whether all have come to this round."""
        arrived = _within(ANSWER_S, lambda: int(self._store.add(f"{self.round}/arrived", 0)))
        return arrived == len(self.world.incarnations)

    def missing(self) -> list[str]:
        """Return the names of the nodes whose agents have not come."""

        def look() -> list[str]:
            names = enumerate(self.world.names)
            return [name for place, name in names if not self._store.add(f"{self.round}/{place}", 0)]

        return _within(ANSWER_S, look)

    @property
    def closed(self) -> bool:
        """Return whether an agent has ended the whole job."""
        return _within(ANSWER_S, lambda: bool(self._closing.add("closed", 0)))

    def close(self) -> None:
        """End the whole job, for all that ask while the store is there."""
        _within(ANSWER_S, lambda: self._closing.add("closed", 1))

    def store(self) -> Store:
        """Return the store of this round, for the agents."""
        return PrefixStore(str(self.round), self._store)

    def worker_port(self) -> int:
        """Return the port for the store of the workers, which the first member chooses."""
        store = self.store()
        if self.world.rank == 0:
            store.set("worker-port", str(get_free_port()))
        return int(store.get("worker-port"))


def _within(limit_s: float, call: Callable[[], AnswerT]) -> AnswerT:
    """Return what a call returns, or raise what it raises; RendezvousConnectionError after `limit_s`."""
    answer: Future[AnswerT] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="rendezvous", daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError:
        raise RendezvousConnectionError(f"{MEETING}: the store gives no answer for {limit_s:.0f} s") from None


# ----------------------------------------------------------------------------
# What torchrun calls, all of it in one thread.


class MemberRendezvous(RendezvousHandler):  # type: ignore[misc]
    """The rendezvous of this node's agent."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        """Use the run id, the numbers of nodes and, of the configuration, `port`, `join_timeout` (s) and
        `two_nodes`.

        Raises:
            ValueError: an endpoint is given, a name that is unknown, or a figure that cannot be.
        """
        if parameters.endpoint:
            raise ValueError(
                f"--rdzv-endpoint {parameters.endpoint!r:.100} is refused: --rdzv-backend {BACKEND} has none,"
                " since the daemon knows the nodes; another port is --rdzv-conf port=N"
            )
        if unknown := sorted(set(parameters.config) - KNOWN):
            raise ValueError(
                f"--rdzv-conf {unknown[0]!r:.80} is unknown to --rdzv-backend {BACKEND}: it takes port,"
                " join_timeout and two_nodes"
            )
        self._run_id: str = parameters.run_id
        self._nodes_min: int = parameters.min_nodes
        self._nodes_max: int = parameters.max_nodes
        self._port: int = parameters.get_as_int("port", PORT)
        self._join_timeout_s: int = parameters.get_as_int("join_timeout", JOIN_TIMEOUT_S)
        self._two_nodes: str = parameters.get("two_nodes", "stall")
        self._link: Link | None = None
        self._server: TCPStore | None = None  # while this node is the first member
        self._meeting: Meeting | None = None  # of the world whose workers run
        self._attached_at = self._next_look = 0.0

    def get_backend(self) -> str:
        """Return the name of this backend."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the id of the job."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Return False: workers of a later world must not find what those of an earlier one have written."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the agents of all members are here, at least as many as the job needs.

        Nodes beyond the job's maximum wait until they are among the first members.

        Raises:
            RendezvousTimeoutError: a member's agent does not come, or there are too few members.
            RendezvousClosedError: the job has ended.
            RendezvousConnectionError: no daemon answers, or it refuses this trainer.
        """
        self._meeting, meeting = None, None
        deadline = time.monotonic() + self._join_timeout_s
        while True:
            world = self._world()
            waits = self._lacks(world)
            if world.rank is None and len(world.incarnations) == self._nodes_max:
                deadline = time.monotonic() + self._join_timeout_s
            if not waits:
                try:
                    meeting = self._meet(world, meeting)
                    if meeting.is_complete:
                        port = meeting.worker_port()
                        break
                    waits = f"no torchrun has come from {', '.join(meeting.missing())}"
                except (*LOST, OSError) as error:  # its agent is not there yet
                    meeting = None
                    waits = f"{world.names[0]}, the first member, has no store at port {self._port}: {error}"
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"{MEETING} within {self._join_timeout_s} s: {waits}")
            time.sleep(POLL_S)
        self._count_step()
        self._meeting = meeting
        return RendezvousInfo(
            meeting.store(), world.rank, len(world.incarnations), RendezvousStoreInfo(world.host, port)
        )

    def num_nodes_waiting(self) -> int:
        """Return above 0 if the members have changed, or an agent of a member starts its workers anew."""
        now = time.monotonic()
        if self._meeting is None or now < self._next_look:
            return 0
        self._next_look = now + LOOK_S
        try:
            world, formed = self._world(), self._meeting.world
            if world != formed:
                return max(1, len(set(world.incarnations) - set(formed.incarnations)))
            return int(self._meeting.is_over)
        except LOST:
            return 1  # the daemon or the first member's agent is gone

    def is_closed(self) -> bool:
        """Return whether the job is known to have ended."""
        with contextlib.suppress(*LOST):
            return self._meeting is not None and self._meeting.closed
        return False

    def set_closed(self) -> None:
        """End the job: no world is formed any more while the first member's agent is there."""
        with contextlib.suppress(*LOST):
            if self._meeting is not None:
                self._meeting.close()

    def shutdown(self) -> bool:
        """Leave the daemon, which does not start torchrun again if the workers have succeeded.

        torchrun calls this in a finally block. A job whose workers have failed is not closed by it: the
        daemon starts torchrun again, and the others go on with it.
        """
        finished = sys.exception() is None
        if finished:
            self.set_closed()
        self._leave(finished=finished)
        return True

    # -- the daemon, and the store

    def _world(self) -> World:
        try:
            if self._link is None:
                initial = np.zeros(1, np.float32)
                self._link = attach(initial, label="torchrun", two_nodes=self._two_nodes, alone=False)
                self._attached_at = time.monotonic()
            with ControlClient(control_path()) as client:
                status: Fields = client.request("status")["status"]
                self._remove_silent(status, client)
        except P2psgdError as error:
            self._leave(finished=False)
            raise RendezvousConnectionError(str(error)) from None
        if status["trainer"].get("pid") != os.getpid():
            self._leave(finished=False)
            raise RendezvousConnectionError("the daemon has been started again")
        return world_of(status, nodes_max=self._nodes_max)

    def _remove_silent(self, status: Fields, client: ControlClient) -> None:
        """Ask for a view without the members that are dead: where no weight changes, no daemon waits for
        them. The daemon refuses for one that is linked, and decides nothing without a majority.
        """
        limit_s = SILENT_TIMEOUTS * status["failure_timeout_s"]
        for member in (status.get("view") or {}).get("members", ()):
            heard_s = member["heard_s"]
            silent_s = time.monotonic() - self._attached_at if heard_s is None else heard_s
            if not member["linked"] and silent_s > limit_s:
                with contextlib.suppress(UsageError):
                    client.request("remove", node=member["id"], forbid=False)

    def _lacks(self, world: World) -> str:
        """Return why this node cannot be in a world now; empty if it can."""
        if len(world.incarnations) < self._nodes_min:
            return (
                f"the run has {len(world.incarnations)} members of the {self._nodes_min} that the job needs"
            )
        return "this node is not among the members" if world.rank is None else ""

    def _count_step(self) -> None:
        """Have the daemon see progress, by a step that changes nothing: it forgives crashes after that."""
        if self._link is not None:
            with contextlib.suppress(P2psgdError):
                self._link.send(np.zeros(1, np.float32), threshold=1)

    def _leave(self, *, finished: bool) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.close(finished=finished)

    def _meet(self, world: World, meeting: Meeting | None) -> Meeting:
        """Return the meeting of this world, in the round that is open."""
        fresh = meeting is None or meeting.world != world
        if fresh:
            if world.rank != 0:
                self._server = None
            elif self._server is None:
                self._server = self._open_store(world.host, is_master=True)
            store = self._open_store(world.host)
            store.set_timeout(timedelta(seconds=READ_S))
            meeting = Meeting(store, self._run_id, world)
        assert meeting is not None
        if meeting.closed:
            raise RendezvousClosedError("the job has ended on another node")
        if fresh or meeting.is_over:
            meeting.join()
        return meeting

    def _open_store(self, host: str, *, is_master: bool = False) -> TCPStore:
        if not host:
            raise RendezvousConnectionError("no address of it is known")
        if not is_master:  # what PyTorch does by itself takes twice the timeout, and prints pages
            socket.create_connection((host, self._port), timeout=CONNECT_S).close()
        options = {"timeout": timedelta(seconds=CONNECT_S), "wait_for_workers": False, "is_master": is_master}
        return _within(ANSWER_S, lambda: TCPStore(host, self._port, **options))


def handler() -> RendezvousHandlerCreator:
    """Return what makes a rendezvous; torchrun finds this function by an entry point, `torchrun.handlers`."""
    return MemberRendezvous
