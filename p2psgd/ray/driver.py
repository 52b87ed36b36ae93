"""The driver of a run on Ray: asks for actors, hands their addresses round, and proves their replicas equal.

Ray decides where a node runs: all actors are asked for at once, as many as the range allows, spread over the
machines. Those that find no room wait, and an autoscaler enlarges the cluster for them. Ray also starts an
actor again that has died, alone or with its machine. What is left to the driver is what no actor can know:
the addresses of the others, which nodes begin the run, when all have trained, and whether their replicas are
equal.

The first actors that run, as many as the least number, begin the run, and all others join it: two groups that
begin apart would never become one run. The run needs none of its nodes in particular; it ends with the
driver, as everything in Ray does.

More than 700 lines, since all phases of a run decide by the same few facts of its actors and nodes.
"""

from __future__ import annotations

import math
import re
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rich.console import Console

from p2psgd.base.errors import FINAL, ExitCode, P2psgdError, UsageError, cannot
from p2psgd.base.formatting import counted, listed, printable
from p2psgd.base.interruption import Interruption
from p2psgd.cli.ca_authority import Authority, create_authority
from p2psgd.cli.local.report import Display, Outcome, Report, build_report, summary_text
from p2psgd.cli.local.run import Speed
from p2psgd.cli.local.verify import Convergence, frontier_of, who_lacks_what
from p2psgd.cli.options import check_failure_timeout
from p2psgd.net.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from p2psgd.observe.status import NodeState, NodeStatus, read_status
from p2psgd.ray.node import Job, Look, NodeActor, Order, Sum, are_equal
from p2psgd.storage.files import replacing
from p2psgd.wire.messages import MEMBERS_MAX
from p2psgd.wire.mode import parse_mode

NAMESPACE: Final = "p2psgd"  # of the actors' names in Ray
SCRIPT_BYTES_MAX: Final = 16 * 1024 * 1024
TURN_S: Final = 0.5  # between two looks at the actors
STATES_S: Final = 30.0  # to wait for actors with states of an earlier call, beyond as many as begin the run
AWAY_S: Final = 15.0  # without a look: its actor or machine may be gone, and Ray has not said so
BACK_LIMIT_S: Final = 60.0  # for a node that is being started again when all others have trained
FINISH_LIMIT_S: Final = 60.0  # for the last mini-batch, once the caller wants the end
SCRIPT_LIMIT_S: Final = 600.0  # for what a script does after its training
CONVERGENCE_LIMIT_S: Final = 60.0  # without any progress
COMPARED_AGAIN_MAX: Final = 3  # times, if nodes go on while their replicas are read
CALL_LIMIT_S: Final = 300.0  # for a replica, or the end of a daemon

GATHERING: Final = "waiting for machines"
TRAINING: Final = "training"
STOPPING: Final = "stopping (Ctrl+C again kills)"
CONVERGING: Final = "waiting until all have every update"
COMPARING: Final = "comparing the replicas"
ENDING: Final = "waiting until the scripts have ended"

Progress = Callable[[str, Sequence[NodeStatus]], None]


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        identical: Whether the replicas of all nodes that were there at the end are the same bytes. In mode
            closure, scripts that an interruption has ended at different evaluations are not compared.
        digest: Their digest, as `p2psgd digest` prints it; None if they differ, or were not all compared.
        report: What `p2psgd local --report` writes, and for each node its `machine` and its number of
            `starts`; `lost` names nodes that were given up, `troubles` what else went wrong, in sentences.
        weights: The trained weights as a safetensors file; `safetensors.numpy.load` reads them.
    """

    identical: bool
    digest: str | None
    report: Report
    weights: bytes = field(repr=False)


def run(
    script: str | Path,
    *,
    nodes: int | tuple[int, int],
    arguments: Sequence[str] = (),
    resources: Mapping[str, float] | None = None,
    name: str | None = None,
    state: str | None = None,
    weights: str | Path | None = None,
    restarts: int = 10,
    wait_s: float = 600.0,
    failure_timeout_s: float = 5.0,
    progress: Progress | None = None,
) -> Result:
    """Train by a script on the nodes of a Ray cluster, and return the trained weights.

    Connects to Ray by `ray.init()` unless the caller has done so. Ctrl+C ends the training early, and the
    result is that of what was trained.

    Args:
        script: The training script, which is copied to each machine. Modules beside it are not: give Ray
            their directory as `working_dir`.
        nodes: How many nodes begin the run, and how many there may be; one number for both.
        arguments: Of the script.
        resources: What a node asks Ray for, such as {"CPU": 8, "GPU": 1}. Default: one CPU.
        name: Names the state of the nodes on their machines. A second run of the same name goes on with it.
            Default: a new one, whose state is removed at a good end.
        state: The directory for it on each machine, as an absolute path, such as one that all machines share.
            Default: this user's own, `~/.local/state/p2psgd/ray`.
        weights: The file for the weights, .safetensors, beside the result. Default: none.
        restarts: How often each actor is started again before its node is given up. Default: 10.
        wait_s: How long to wait for the machines that begin the run. Default: 600.
        failure_timeout_s: As `--failure-timeout` of a node. Default: 5.
        progress: Called about twice a second with what the run does and the status of each node. Default: it
            is printed.

    Returns:
        The result.

    Raises:
        UsageError: an argument is wrong, Ray is not installed or not reached, a run of this name is going on
            in the cluster, the cluster is too small, a script fails as it would at a further start, or no
            actor is left.

    Example:
        ```python
        result = p2psgd.ray.run("train.py", nodes=(2, 16), resources={"CPU": 4})
        ```
    """
    low, high = _check_range(nodes)
    source = _read_script(Path(script))
    target = _check_target(weights)
    options = _actor_options(resources, restarts)
    check_failure_timeout(failure_timeout_s)
    job = Job(
        run=name_run(name, Path(script)),
        call=secrets.token_hex(8),
        script=source,
        script_name=Path(script).name,
        arguments=_check_arguments(arguments),
        state=_check_state(state),
        failure_timeout_s=failure_timeout_s,
    )
    try:
        import ray
    except ImportError:
        raise UsageError(
            "p2psgd.ray.run needs Ray, which is not installed here: pip install ray", ExitCode.CONFIGURATION
        ) from None
    with ExitStack() as stack:
        if not ray.is_initialized():
            try:
                ray.init()
            except (OSError, RuntimeError, ValueError) as error:
                words = f"Ray cannot be reached: {printable(str(error)):.300}"
                raise UsageError(words, ExitCode.TEMPORARY) from None
            stack.callback(ray.shutdown)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2psgd-ray-")))
        driver = _Driver(
            ray, job, low=low, options=options, progress=progress, place=place, goes_on=name is not None
        )
        interruption = Interruption()  # it takes signals in the main thread alone
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(interruption)  # also of more Ctrl+C, while actors are killed
        stack.callback(driver.close)
        driver.ask_for_actors(high)
        result = driver.execute(interruption, wait_s)
    if target is not None:
        with replacing(target, mode=0o666) as file:
            file.write(result.weights)
    return result


# ----------------------------------------------------------------------------
# The arguments, before anything is asked of Ray.


def _check_range(nodes: int | tuple[int, int]) -> tuple[int, int]:
    low, high = nodes if isinstance(nodes, tuple) and len(nodes) == 2 else (nodes, nodes)
    if not (type(low) is type(high) is int and 1 <= low <= high <= MEMBERS_MAX):
        raise UsageError(
            f"nodes={nodes!r:.80}: give a number of nodes, or a least and a greatest one such as (2, 16),"
            f" within 1 to {MEMBERS_MAX}"
        )
    return low, high


def _read_script(script: Path) -> bytes:
    try:
        source = script.read_bytes()
    except OSError as error:
        raise cannot(f"read the script {script}", error) from None
    if len(source) > SCRIPT_BYTES_MAX:
        raise UsageError(f"{script} has more than {SCRIPT_BYTES_MAX} bytes: is it a script?")
    return source


def _check_target(weights: str | Path | None) -> Path | None:
    if weights is None:
        return None
    target = Path(weights)
    if target.suffix != ".safetensors" or not target.absolute().parent.is_dir():
        raise UsageError(f"weights={str(target)!r:.80}: give a file *.safetensors in a directory that exists")
    return target


def name_run(name: str | None, script: Path) -> str:
    """Return the name of a run, by default one after its script; UsageError if it is a wrong one."""
    if name is None:
        return f"{re.sub('[^a-zA-Z0-9]', '-', script.stem)[:40]}-{secrets.token_hex(4)}"
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
        raise UsageError(f"name={name!r:.80}: give 1 to 64 letters, digits, dashes and underscores")
    return name


def _check_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arguments, str | bytes) or not isinstance(arguments, Iterable):
        raise UsageError(f"arguments={arguments!r:.80}: give a list of them, such as ['100']")
    return tuple(map(str, arguments))


def _check_state(state: str | None) -> str | None:
    if state is not None and not str(state).startswith(("/", "~")):
        raise UsageError(f"state={str(state)!r:.80}: give an absolute path, as it is on each machine")
    return state


def _actor_options(resources: Mapping[str, float] | None, restarts: int) -> dict[str, Any]:
    """Return Ray's options for an actor."""
    wanted = {"CPU": 1.0} if resources is None else dict(resources)
    for kind, amount in wanted.items():
        if not (isinstance(kind, str) and isinstance(amount, int | float) and 0 < amount < math.inf):
            raise UsageError(
                f"resources={wanted!r:.80}: give numbers above 0, such as {{'CPU': 4, 'GPU': 1}}"
            )
    if not (type(restarts) is int and restarts >= 0):
        raise UsageError(f"restarts={restarts!r:.80}: give a number, 0 or more")
    return {
        "num_cpus": wanted.pop("CPU", 0),
        "num_gpus": wanted.pop("GPU", 0),
        "resources": wanted,
        "scheduling_strategy": "SPREAD",
        "max_restarts": restarts,
        "max_task_retries": -1,  # a look may be repeated; the one limit is that of restarts
    }


# ----------------------------------------------------------------------------
# Nodes and actors. A node is a state directory, with its id and its name. An actor has the node whose state
# it finds on its machine, or else a new one: perhaps another one in each incarnation.


@dataclass(eq=False)
class _Node:
    """A node, as its actors have reported it to the driver."""

    name: str
    id: int
    status: NodeStatus
    machine: str = ""
    starts: int = 0  # of its daemon
    answered: float = -math.inf  # when its latest status came
    why: str = ""  # it was given up
    speed: Speed = field(default_factory=Speed)
    pace: Speed = field(default_factory=Speed)

    @property
    def is_up(self) -> bool:
        """Return whether its daemon has answered within AWAY_S."""
        return time.monotonic() - self.answered < AWAY_S

    @property
    def is_member(self) -> bool:
        """Return whether it is up, and in the run with a complete replica."""
        return self.is_up and bool(self.status.ready)

    @property
    def has_trained(self) -> bool:
        """Return whether it is up, and its script has come to the end of its training."""
        return self.is_up and self.status.trainer.finished


@dataclass(eq=False)
class _Actor:
    """An actor: the look at it that is under way, and what the last one has found."""

    number: int
    handle: Any
    asked: Any
    looked: float = -math.inf
    look: Look | None = None
    node: _Node | None = None  # in this incarnation
    tls: Mapping[str, bytes] = field(default_factory=dict)  # for this incarnation
    started: str = ""  # the last incarnation that has started a daemon
    trouble: str = ""  # of the last look, if it has failed on its machine

    @property
    def state_of(self) -> int | None:
        """Return the cluster id of the run that its state is of; None if of none yet, or its daemon has been
        started.
        """
        return None if self.look is None else self.look.cluster_id


class _Driver:
    """A run, from the first actor to the report."""

    def __init__(
        self,
        ray: ModuleType,
        job: Job,
        *,
        low: int,
        options: dict[str, Any],
        progress: Progress | None,
        place: Path,
        goes_on: bool,
    ) -> None:
        """`goes_on`: with states of an earlier call, if there are some, and a later one goes on with its."""
        self._ray: Any = ray
        self._goes_on = goes_on
        self._job, self._low, self._options = job, low, options
        self._authority: Authority = create_authority(place / "ca", job.run, now=datetime.now(UTC))
        self._progress = progress
        self._display = Display(Console(quiet=progress is not None), f"p2psgd.ray, run {job.run}")
        self._actors: list[_Actor] = []
        self._nodes: dict[int, _Node] = {}
        self._founders: list[_Actor] = []
        self._run: int | None = None  # its cluster id, once it has begun
        self._given_up: list[str] = []  # why, of actors
        self._strangers: list[str] = []  # sentences about those with states of another run
        self._ranked = False
        self._began = time.monotonic()

    def ask_for_actors(self, count: int) -> None:
        """Ask Ray for this number of actors; UsageError if a run of this name has some in the cluster.

        Ray gives no name twice, and frees those of a driver that ends, however it does.
        """
        run, make = self._job.run, self._ray.remote(NodeActor).options
        named = self._ray.util.list_named_actors(all_namespaces=True)
        taken = any((each["namespace"], each["name"].partition("/")[0]) == (NAMESPACE, run) for each in named)
        try:
            for number in range(0 if taken else count):
                options = self._options | {"namespace": NAMESPACE, "name": f"{run}/{number}"}
                handle = make(**options).remote(self._job)
                self._actors.append(_Actor(number, handle, handle.look.remote(None)))
        except self._ray.exceptions.ActorAlreadyExistsError:  # of a call at the same moment
            taken = True
        if taken:
            raise UsageError(
                f"a run named {run!r} is going on in this cluster: wait for its end, or give another name",
                ExitCode.TEMPORARY,
            )
        self._ranked = count == self._low

    def close(self) -> None:
        """End all actors, also those that still wait; the daemons follow."""
        for actor in self._actors:
            self._ray.kill(actor.handle, no_restart=True)

    def execute(self, interruption: Interruption, wait_s: float) -> Result:
        """Go through all phases; UsageError if the run cannot begin or go on."""
        with self._display:
            self._gather(interruption, wait_s)
            self._train(interruption)
            cut_short = interruption.requested  # before all had trained
            troubles, sums = self._compare(cut_short=cut_short)
            troubles = [*self._strangers, *troubles]
            if not sums:
                raise UsageError(f"no node gives a replica: {listed(troubles)}", ExitCode.FAILED)
            weights = self._weights(sums)
            troubles += self._let_scripts_end(interruption)
            wall_s = time.monotonic() - self._began
            identical = are_equal(sums.values(), interrupted=cut_short) and all(
                each.is_right for each in sums.values()
            )
            troubles += self._stop(remove=identical and not self._goes_on)
            report = self._report(sums, wall_s, identical=identical) | {"troubles": troubles}
            self._display.say(summary_text(report), *(f"failed: {each}" for each in troubles))
        return Result(identical, report["digest"], report, weights)

    def _weights(self, names: Collection[str]) -> bytes:
        """Return the weights of the first of these nodes that gives them: machines may go at any moment."""
        why = "all machines have gone"
        for actor in self._live:
            if actor.node is not None and actor.node.name in names:
                try:
                    weights: bytes = self._ray.get(actor.handle.weights.remote(), timeout=CALL_LIMIT_S)
                    return weights
                except (self._ray.exceptions.RayError, P2psgdError) as error:
                    why = f"{actor.node.name}: {_last_line(error)}"
        raise UsageError(f"no node gives its weights: {why}", ExitCode.FAILED)

    def _report(self, sums: Mapping[str, Sum], wall_s: float, *, identical: bool) -> Report:
        nodes = {node.name: node for node in self._nodes.values() if node.starts}
        digests = {each.digest for each in sums.values()}
        gone = "its actor or its machine went, and did not come back"
        lost = {name: node.why or gone for name, node in nodes.items() if name not in sums}
        report = build_report(
            Outcome(
                statuses=[node.status for node in nodes.values()],
                wall_s=wall_s,
                recipe=None,
                trainer=" ".join([self._job.script_name, *self._job.arguments]),
                speeds={name: node.speed.per_s for name, node in nodes.items()},
                paces={name: node.pace.per_s for name, node in nodes.items()},
                identical=identical,
                digest=digests.pop() if identical and len(digests) == 1 else None,
                ends=[listed([f"{name} has {each.ended}" for name, each in sums.items()])]
                if identical and len(digests) > 1
                else [],
                digests={name: each.digest for name, each in sums.items()},
                lost=lost,
            )
        )
        for row in report["per_node"]:
            node = nodes[row["node"]]
            row |= {"machine": node.machine, "starts": node.starts}
        return report

    # -- the phases

    def _gather(self, interruption: Interruption, wait_s: float) -> None:
        """Wait until as many actors run as begin the run: those with its states, if it goes on."""
        deadline = time.monotonic() + wait_s
        enough_since: float | None = None
        while True:
            found = [actor for actor in self._live if actor.look]
            runs = Counter(actor.state_of for actor in found if actor.state_of is not None)
            most, states = runs.most_common(1)[0] if runs else (None, 0)
            if len(found) < self._low:
                enough_since = None
            elif not self._goes_on or states >= self._low or len(found) == len(self._live):
                break
            else:
                enough_since = enough_since or time.monotonic()
                if time.monotonic() > enough_since + STATES_S:
                    break
            self._turn(GATHERING)
            if interruption.requested:
                raise KeyboardInterrupt
            if len(found) < self._low and time.monotonic() > deadline:
                raise UsageError(self._too_small(len(found), wait_s), ExitCode.TEMPORARY)
        found.sort(key=lambda actor: (actor.state_of is None, actor.state_of != most))
        self._founders = found[: self._low]

    def _too_small(self, found: int, wait_s: float) -> str:
        options = {"CPU": self._options["num_cpus"], "GPU": self._options["num_gpus"]}
        wants = {kind: amount for kind, amount in options.items() if amount} | self._options["resources"]
        free = self._ray.available_resources()
        has = {kind: free.get(kind, 0.0) for kind in wants}
        return (
            f"only {found} of the {self._low} nodes that begin the run have found room within {wait_s:g} s:"
            f" each asks for {wants}, and the cluster has {has} free: add machines, or ask for less"
        )

    def _train(self, interruption: Interruption) -> None:
        """Wait until all nodes have trained, or end their training once the caller wants that."""
        alone_since: float | None = None
        while True:
            self._turn(TRAINING)
            if interruption.requested:
                self._finish()
                return
            members = [node for node in self._nodes.values() if node.is_member]
            if not members or not all(node.has_trained for node in members):
                alone_since = None
                continue
            now = time.monotonic()
            alone_since = alone_since or now
            recent = (node for node in self._nodes.values() if now - node.answered < BACK_LIMIT_S)
            if all(node.has_trained for node in recent) or now - alone_since > BACK_LIMIT_S:
                return

    def _finish(self) -> None:
        """End the training of all nodes after their mini-batch; KeyboardInterrupt if no member has made a
        step.
        """
        if not any(node.is_member and node.status.trainer.steps for node in self._nodes.values()):
            raise KeyboardInterrupt
        deadline = time.monotonic() + FINISH_LIMIT_S
        while late := [
            actor for actor in self._live if actor.node and actor.node.is_up and not actor.node.has_trained
        ]:
            for actor in late:
                if time.monotonic() > deadline:
                    waits = actor.node.status.waits if actor.node else ""
                    why = waits or "it may not look at link.stopping"
                    self._give_up(actor, f"its script did not end: {why}")
                    self._ray.kill(actor.handle, no_restart=True)
                else:
                    actor.handle.finish.remote()
            self._turn(STOPPING)

    def _compare(self, *, cut_short: bool) -> tuple[list[str], dict[str, Sum]]:
        """Wait until all nodes have the same updates, and compare their replicas; return what went wrong, and
        what stands for each replica.
        """
        for _ in range(1 + COMPARED_AGAIN_MAX):
            troubles = self._converge()
            self._turn(COMPARING)
            sums: dict[str, Sum] = {}
            for actor in self._live:
                if actor.node is not None and actor.node.has_trained:
                    try:
                        sums[actor.node.name] = self._sum_of(actor, actor.node)
                    except (self._ray.exceptions.RayError, P2psgdError) as error:
                        troubles.append(f"{actor.node.name} gave no replica: {_last_line(error)}")
            if are_equal(sums.values(), interrupted=cut_short):
                break
        else:
            troubles.append(f"the replicas of {listed(list(sums))} are not identical")
        wrong = [name for name, each in sums.items() if not each.is_right]
        troubles += [f"{name}: its digest is not that of its weights" for name in wrong]
        return troubles, sums

    def _sum_of(self, actor: _Actor, node: _Node) -> Sum:
        if node.status.run is None:
            raise UsageError("it knows no run")
        key = int.from_bytes(bytes.fromhex(node.status.run.fingerprint)[:8], "little")
        found: Sum = self._ray.get(actor.handle.sum_of_replica.remote(key), timeout=CALL_LIMIT_S)
        return found

    def _converge(self) -> list[str]:
        """Wait until the nodes have applied the same updates; return what is missing if they do not."""
        since = time.monotonic()
        limit_s = max(CONVERGENCE_LIMIT_S, 12 * self._job.failure_timeout_s)
        modes = [parse_mode(node.status.run.mode) for node in self._nodes.values() if node.status.run]
        settled_s = max((mode.settled_s for mode in modes), default=0.0)
        convergence = Convergence(limit_s, since, settled_s=settled_s)
        while not convergence.reached:
            self._turn(CONVERGING)
            there = [node for node in self._nodes.values() if node.has_trained]
            frontiers = {node.name: frontier_of(node.status) for node in there}
            if there and all(node.answered > since for node in there):
                since = time.monotonic()
                convergence.look(frontiers, since)
            if convergence.stalled(time.monotonic()):
                missing = who_lacks_what(frontiers) or ["not every daemon answers"]
                return [f"no progress for {limit_s:.0f} s: {'; '.join(missing)}"]
        return []

    def _let_scripts_end(self, interruption: Interruption) -> list[str]:
        """Wait until no script runs any more, since it may evaluate and save after its training."""
        deadline = time.monotonic() + SCRIPT_LIMIT_S
        while running := [
            node.name for node in self._nodes.values() if node.is_up and node.status.trainer.running
        ]:
            if interruption.requested:
                break
            if time.monotonic() > deadline:
                return [f"{listed(running)}: the script still ran {SCRIPT_LIMIT_S:.0f} s after its training"]
            self._turn(ENDING)
        return []

    def _stop(self, *, remove: bool) -> list[str]:
        """Stop all daemons at once; return what did not end well."""
        calls = {
            actor.node.name: actor.handle.stop.remote(remove=remove)
            for actor in self._live
            if actor.node is not None and actor.node.is_up
        }
        troubles = []
        for name, call in calls.items():
            try:
                words = self._ray.get(call, timeout=CALL_LIMIT_S)
            except self._ray.exceptions.RayError as error:
                words = f"was not stopped: {_last_line(error)}"
            troubles += [f"{name}: {words}"] if words else []
        return troubles

    # -- the actors

    @property
    def _live(self) -> list[_Actor]:
        """The actors that are not given up: they run, or Ray looks for a machine."""
        return [actor for actor in self._actors if actor.asked is not None]

    def _turn(self, phase: str) -> None:
        """Wait a moment, and take in the looks that have come."""
        time.sleep(TURN_S)
        self._check_states()
        asked = [actor.asked for actor in self._live]
        done = self._ray.wait(asked, num_returns=len(asked), timeout=0)[0] if asked else ()
        for actor in self._live:
            if actor.asked in done:
                self._take_in(actor)
        self._replace_founders()
        if len(self._live) < (1 if self._has_begun else self._low):
            left = counted(len(self._live), "actor")
            needs = "" if self._has_begun else f", and the run needs {self._low} to begin"
            why = listed(list(dict.fromkeys(self._given_up))[:4])
            raise UsageError(f"{left} left{needs}: {why}", ExitCode.FAILED)
        without = sum(actor.node is None for actor in self._live)
        if without:
            phase += f", {without} of {counted(len(asked), 'actor')} without a machine"
        if self._progress is None:
            self._display.show(phase, self._statuses())
        else:
            self._progress(phase, self._statuses())

    @property
    def _has_begun(self) -> bool:
        return any(node.status.view and node.status.view.number for node in self._nodes.values())

    def _check_states(self) -> None:
        """Give up actors with states of another run than this one; UsageError if the nodes that are to begin
        it have states of several runs, which never become one.
        """
        views = [node.status.view for node in self._nodes.values()]
        if self._run is None:
            self._run = next((int(view.cluster_id, 16) for view in views if view and view.number), None)
        runs: dict[int, list[str]] = {}
        for actor in self._founders if self._run is None else ():
            if actor.look and actor.state_of is not None:
                runs.setdefault(actor.state_of, []).append(actor.look.place)
        if len(runs) > 1:
            raise UsageError(
                f"the states of {self._job.run!r} are of {len(runs)} runs, which never become one:"
                f" {'; '.join(map(listed, runs.values()))}: keep the directories of one run and remove the"
                " others, or give another name",
                ExitCode.CONFIGURATION,
            )
        run = next(iter(runs), self._run)
        for actor in self._live:
            if run is not None and actor.look and actor.state_of not in (None, run):
                words = (
                    f"the state {actor.look.place} is of another run than that of the first nodes, and takes"
                    " no part: keep one of the two runs, and remove the directories of the other"
                )
                self._strangers.append(words)
                self._give_up(actor, words)
                self._ray.kill(actor.handle, no_restart=True)

    def _replace_founders(self) -> None:
        """Let others begin the run in place of actors that were given up before it began."""
        if self._founders and not self._has_begun:
            left = [actor for actor in self._founders if actor.asked is not None]
            spare = [actor for actor in self._live if actor.look and actor not in left]
            self._founders = [*left, *spare][: self._low]

    def _statuses(self) -> list[NodeStatus]:
        """Return the latest status of each node, and for one that is away what it waits for."""
        now = time.monotonic()
        held = {actor.node: actor for actor in self._live if now - actor.looked < AWAY_S}
        statuses = []
        for node in self._nodes.values():
            status = node.status
            if node not in held and not node.starts:
                continue
            if node not in held:
                lost = f"lost ({node.why or 'its actor or its machine is gone'})"
                status = status.model_copy(update={"state": NodeState.LOST, "waits": lost})
            elif not node.is_up:
                look = held[node].look
                status = status.model_copy(update={"waits": look.waits if look else ""})
            statuses.append(status)
        return statuses

    def _take_in(self, actor: _Actor) -> None:
        """Take in what a look has found, and begin the next one."""
        try:
            look: Look = self._ray.get(actor.asked)
        except self._ray.exceptions.RayActorError as error:
            self._give_up(actor, actor.trouble or _last_line(error))
            return
        except self._ray.exceptions.RayTaskError as error:  # such as a machine whose disk is full
            if isinstance(error.cause, UsageError) and error.cause.exit_code in FINAL:
                raise error.cause from None
            name = actor.node.name if actor.node else f"actor {actor.number}"
            actor.trouble = _last_line(error)
            self._display.say(f"{name} is started again: {actor.trouble}")
            self._ray.kill(actor.handle, no_restart=False)
            actor.asked = actor.handle.look.remote(None)
            return
        if actor.look is None or look.incarnation != actor.look.incarnation:
            self._begin_incarnation(actor, look)
        node, actor.look, actor.looked, actor.trouble = actor.node, look, time.monotonic(), ""
        assert node is not None
        if look.incarnation != actor.started and (look.status is not None or look.exit_code is not None):
            actor.started = look.incarnation
            node.starts += 1
            if node.starts > 1:
                self._display.say(f"{node.name} is started again, on {look.machine}")
        if look.exit_code is not None:
            self._note_end(actor, node, look)
        elif look.status is not None:
            node.answered = actor.looked
            node.status = read_status(look.status).model_copy(update={"node": node.name})
            node.speed.note(node.status.trainer.samples, node.answered)
            node.pace.note(node.status.trainer.steps, node.answered)
        if node is next(iter(self._nodes.values())):
            self._display.say(*look.printed)
        actor.asked = actor.handle.look.remote(self._order(actor))

    def _begin_incarnation(self, actor: _Actor, look: Look) -> None:
        """Find the node whose state an actor has now, or make a new one, and its certificate."""
        id_ = secrets.randbits(64) if look.node is None else look.node
        known = self._nodes.get(id_)
        if known is None:
            name = f"node-{len(self._nodes)}"
            self._nodes[id_] = known = _Node(name, id_, NodeStatus(node=name))
        for other in self._actors:
            if other.node is known:  # its actor has died, and another has come to the machine first
                other.node = None
        actor.node, known.machine = known, look.machine
        try:
            place = self._authority.directory_of(known.name)
        except UsageError:
            place = self._authority.issue(known.name, now=datetime.now(UTC), node=id_).directory
        actor.tls = {name: (place / name).read_bytes() for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)}

    def _note_end(self, actor: _Actor, node: _Node, look: Look) -> None:
        """Raise UsageError if a daemon's end needs a person, or else have Ray start its actor again."""
        self._display.say(f"{node.name} on {look.machine} {look.ending}")
        if look.exit_code in FINAL:
            self._display.say(f"{node.name} printed last:", *look.report)
            raise UsageError(f"{node.name} {look.ending}", ExitCode(look.exit_code or ExitCode.FAILED))
        self._ray.kill(actor.handle, no_restart=False)

    def _order(self, actor: _Actor) -> Order | None:
        """Return what this incarnation of an actor needs to start; None while it has to wait."""
        begun = self._has_begun
        if actor.look is None or not (begun or actor in self._founders):
            return None
        others = self._live if begun else self._founders
        return Order(
            incarnation=actor.look.incarnation,
            expect=self._low,
            peers=tuple(each.look.address for each in others if each.look),
            rank=f"{actor.number}/{self._low}" if self._ranked else "",
            tls=actor.tls,
        )

    def _give_up(self, actor: _Actor, why: str) -> None:
        """Count no longer on an actor that Ray does not start again."""
        self._given_up.append(why)
        actor.asked = None
        if actor.node is not None:
            actor.node.why = why
            self._display.say(f"{actor.node.name} is given up: {why}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1])[:300] if lines else type(error).__name__
