"""The control socket of a node: the answers to what trainers and commands ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, P2psgdError, TrainerError
from p2psgd.core.events import RemovalRequested, ScrubRequested
from p2psgd.core.read_model import view_of
from p2psgd.core.run_spec import RunSpec, check_limits, hash_coordinates, name_run
from p2psgd.ipc.listener import SOCKET_NAME
from p2psgd.ipc.part import Part, part_of
from p2psgd.ipc.run_proposal import RunProposal, awaits_first_weights
from p2psgd.ipc.server import ControlServer
from p2psgd.ipc.trainer_memory import Given
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.net.address import Address
from p2psgd.net.hosts import Hosts
from p2psgd.node.node_run import NodeRun
from p2psgd.node.options import NodeOptions
from p2psgd.node.recovery import RecoveredRun, open_run
from p2psgd.node.removal import Standing, choose_removal, is_removed, standing_of
from p2psgd.node.tls import NodeTls
from p2psgd.node.trainer import NodeTrainer
from p2psgd.observe.collect import Vitals, collect_status
from p2psgd.observe.compression import OwnCompression
from p2psgd.observe.digest import report_digest
from p2psgd.observe.status import EventsStatus, HttpStatus, NodeState, NodeStatus
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.files import giving_up
from p2psgd.storage.identity import Identity
from p2psgd.wire.evaluation import EvaluationAsked
from p2psgd.wire.messages import Fields
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade

OTHER_INITIAL = (
    "the trainer begins with other weights than its run has begun with, and goes on with those of the run"
)

NO_FIRST = (
    'a script with initial="first" has begun the run of this node, which has no weights yet: say'
    ' initial="first" here as well, or stop this node and delete its state to begin anew: '
)


class ControlledNode(Protocol):
    """The node, as this side of it sees it; `run` is None before the run is known."""

    options: NodeOptions
    identity: Identity
    node_log: NodeLog
    compression: OwnCompression
    hosts: Hosts
    listen: Address
    started: float
    loop_lag_s: float
    run: NodeRun | None
    tls: NodeTls

    def now(self) -> float: ...
    def begin_run(self, opened: RecoveredRun) -> None: ...
    def fail(self, words: str, code: ExitCode) -> None: ...
    def http_status(self) -> HttpStatus | None: ...


class NodeControl:
    """The control socket of one node, which implements what the control server asks of its host."""

    def __init__(self, node: ControlledNode) -> None:
        self._node = node
        self.name, self.node_id = node.identity.name, node.identity.origin.node
        self.alarm = node.node_log.alarm
        usual = node.options.state / SOCKET_NAME
        self.server = ControlServer(
            self, node.options.control or usual, also=usual, group=node.options.control_group
        )
        self.trainer = NodeTrainer(
            node.options,
            self.server.session,
            node.node_log.events,
            peer_steps=self.peer_steps,
            is_alone=self._is_alone,
            fail=node.fail,
        )
        self.asked_to_finish = self.trainer.finish

    # -- ControlHost: the run

    def define_run(self, proposal: RunProposal, coordinates: NDArray[np.int32]) -> None:
        fields = (proposal.tensors, proposal.quantum_log2, proposal.mode, proposal.label)
        _check_part(self._node.options.part, proposal.label)
        spec = RunSpec(*fields, hash_coordinates(coordinates), proposal.two_nodes, proposal.shards)
        if self._node.run is not None:
            known = self._node.run.replica.spec
            if dataclasses.replace(spec, initial=known.initial).fingerprint != known.fingerprint:
                raise TrainerError(_another_run(known, spec, self._node.options.state))
            if spec.initial != known.initial:
                if awaits_first_weights(self._node.run.replica.lattice.coordinates):
                    raise TrainerError(NO_FIRST + giving_up(self._node.options.state))
                # Else it is of a script that loads what it has saved, or has no seed.
                self._node.node_log.note("trainer", OTHER_INITIAL)
            self.trainer.came()
            return
        try:
            check_limits(spec)
        except ValueError as error:
            raise TrainerError(str(error)) from None
        options = self._node.options
        try:
            self._node.begin_run(open_run(options.state, spec, coordinates, self._node.node_log))
        except P2psgdError as error:
            raise TrainerError(str(error)) from None
        self.trainer.came()

    def run(self) -> RunProposal | None:
        if self._node.run is None:
            return None
        spec = self._node.run.replica.spec
        fields = (spec.tensors, spec.quantum_log2, spec.mode, spec.label, spec.two_nodes, spec.shards)
        return RunProposal(*fields)

    def replica(self) -> NDArray[np.int32]:
        return self._known_run().replica.lattice.coordinates

    def replica_digest(self) -> int:
        return self._known_run().replica.lattice.digest

    def trainer_weights(self) -> NDArray[np.int32]:
        return self._known_run().replica.trainer_weights()

    def trainer_digest(self) -> int:
        return self._known_run().replica.trainer_digest

    def digest_key(self) -> int:
        return self._known_run().replica.spec.key

    def ready(self) -> str:
        run = self._node.run
        if run is None or run.replica.ready or self.trainer.state is NodeState.DRAINING:
            return ""
        return run.replica.waiting_for()

    def peer_steps(self) -> dict[int, int]:
        if self._node.run is None:
            return {}
        replica = self._node.run.replica
        return {node: count for node, count in replica.frontier.steps().items() if node != replica.me.node}

    def _is_alone(self) -> bool:
        run = self._node.run
        return run is None or (len(run.replica.view.members) <= 1 and not run.expects_peers())

    def _known_run(self) -> NodeRun:
        assert self._node.run is not None
        return self._node.run

    # -- ControlHost: the trainer

    def rank(self) -> tuple[int, int] | None:
        hosts = self._node.hosts
        if self._node.options.rank is not None:
            return self._node.options.rank
        alone = not hosts.peers and self._node.options.bootstrap_expect_of(0) == 1
        return (0, 1) if alone else hosts.rank if hosts.peers else None

    def outbox_taken(self, taken: Sequence[Given]) -> None:
        run, count = self._known_run(), self._node.compression.count
        for given in taken:
            match given:
                case OwnUpdateMade():
                    count(given)
                case ContributionMade(updates=updates):
                    for update in updates:
                        count(update)
                case BucketContributed() | EvaluationAsked():
                    pass
        run.outbox_taken()

    def trainer_state(self, state: TrainerState) -> None:
        self._known_run().checkpointer.trainer_state(state)

    def trainer_attached(self, pid: int) -> None:
        self.trainer.attached(pid)
        self._known_run().trainer_changed(active=True)

    def trainer_left(self, *, finished: bool, words: str) -> None:
        self.trainer.left(finished=finished, words=words)
        self._known_run().trainer_changed(active=False)

    # -- ControlHost: questions

    def digest(self, *, scrub: bool) -> Fields:
        replica = self._known_run().replica
        if scrub:
            self._known_run().handle(ScrubRequested())
        return report_digest(view_of(replica, self._node.now())).model_dump()

    def remove(self, node: str, *, forbid: bool) -> int:
        run = self._known_run()
        replica = run.replica
        chosen = choose_removal(
            node,
            forbid=forbid,
            me=replica.me.node,
            names=replica.names,
            view=replica.view,
            linked=replica.linked_nodes,
            two_nodes=replica.spec.two_nodes,
        )
        if not is_removed(self._standing(chosen), forbid=forbid):
            run.handle(RemovalRequested(chosen, forbid))
        return chosen

    def member(self, node: int) -> Fields:
        return self._standing(node).model_dump()

    def _standing(self, node: int) -> Standing:
        replica = self._known_run().replica
        return standing_of(node, replica.view, replica.names)

    def view_rank(self) -> tuple[int, int]:
        replica = self._known_run().replica
        members, me = list(replica.view.incarnations), replica.me.node
        # Before the run has begun there are none; an evicted node comes after all, where it may return to.
        members += [me] * (me not in members)
        return sorted(members).index(me), len(members)

    def compression(self) -> Fields:
        found = self._node.compression.describe()
        return {} if found is None else found.model_dump()

    def status(self) -> Fields:
        return self.node_status().model_dump(exclude_unset=True)

    def node_status(self) -> NodeStatus:
        """Collect the node's present status."""
        node, run, now = self._node, self._node.run, self._node.now()
        vitals = Vitals(
            state=self.trainer.state,
            started=node.started,
            now=now,
            listen=str(node.listen),
            control=str(node.options.control_place),
            loop_lag_ms=node.loop_lag_s * 1000,
            trainer=self.trainer.status(),
            peer_paces=self.trainer.peer_paces(),
            replica=None if run is None else view_of(run.replica, now),
            checkpoint=None if run is None else run.checkpointer.figures(),
            stall=None if run is None else run.backpressure.stall.figures(now),
            slow_links=() if run is None else run.backpressure.slow_links(),
            congested=run is not None and run.backpressure.congested,
            stopped_nodes=set() if run is None else run.stopped_nodes,
            alarms=node.node_log.alarms,
            compression=node.compression.describe(tensors_max=0),
            events=EventsStatus(**node.node_log.events.status()),
            http=node.http_status(),
            tls=node.tls.status(),
            insecure_plaintext=node.options.insecure_plaintext,
            is_part=node.options.part is not None,
        )
        return collect_status(node.identity, vitals, None if run is None else run.mesh)


def _check_part(ours: Part | None, label: str) -> None:
    """Raise TrainerError if the trainer holds another part of its model than this node is for."""
    theirs = part_of(label)
    if ours is not None and theirs != ours:
        its = "a whole model" if theirs is None else f"part {theirs}"
        raise TrainerError(
            f"this daemon is of part {ours}, and its trainer holds {its}: start one rank of the group for"
            " each part, such as by torchrun --nproc-per-node, and let each find its own daemon"
        )


def _another_run(known: RunSpec, spec: RunSpec, state: Path) -> str:
    """Describe why a trainer for `spec` cannot attach to a node that takes part in `known`."""
    modes = known.mode != spec.mode
    this, other = (name_run(run.fingerprint, run.label, run.mode if modes else "") for run in (known, spec))
    mode = parse_mode(known.mode)
    options = f"--mode ring --payload {mode.payload}" if mode.ring else "--mode async"
    if mode.owners:
        rounds = " --rounds" * mode.rounds + f" --payload {mode.payload}" * mode.ternary
        options = f"--mode owners{rounds} --rule '{mode.rule.word}'"
    if mode.closure:
        options = "mode='closure'"
    words = f" and {options}" if modes else ""
    return (
        f"this node takes part in run {this}, this trainer is for run {other}: start it with the recipe of "
        f"that run{words}, or start another node for it, with another --state, "
        f"or stop this node and delete its state: {giving_up(state)}"
    )
