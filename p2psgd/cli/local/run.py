"""`p2psgd local`: the phases of a run, and what is observed of its nodes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError
from rich.console import Console

from p2psgd.base import formatting
from p2psgd.base.errors import FINAL, DaemonLost, ExitCode, P2psgdError, UsageError
from p2psgd.base.interruption import Interruption
from p2psgd.cli.local.cluster import Cluster, LocalDaemon
from p2psgd.cli.local.output import ScriptOutput
from p2psgd.cli.local.plan import Plan
from p2psgd.cli.local.report import (
    Display,
    Outcome,
    build_report,
    in_short,
    lost_sentence,
    summary_text,
    write_report,
)
from p2psgd.cli.local.verify import (
    Convergence,
    Frontier,
    NodeReplica,
    Proof,
    frontier_of,
    prove,
    who_lacks_what,
)
from p2psgd.cli.parts import export_places
from p2psgd.cli.weights_file import export_weights, fetch_replica
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.ipc.part import part_directories
from p2psgd.ipc.script_state import end_of, trained_weights
from p2psgd.observe.status import Compression, NodeState, NodeStatus, RunStatus, read_status
from p2psgd.recipes.gradients import evaluate
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# How fast a node trained, seen from outside: steps or samples in its statuses over the time between.


class Speed:
    """Mean count per second between the first and the last look that found more than before."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def note(self, count: int, now: float) -> None:
        """Take in what a status counts."""
        if count > self._last[1]:
            self._last = (now, count)
            self._first = self._first or self._last

    @property
    def per_s(self) -> float | None:
        """The mean; None until two looks have found the node training."""
        if self._first is None or self._first == self._last:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


# ----------------------------------------------------------------------------
# What the daemons of a local run say of themselves, asked over their control sockets like anybody could.
#
# A daemon that is silent (stopped, or starved of its core) is asked less often and never waited for long, so
# that it cannot hide what the others do. Its last status is kept, with a note of how long it has been
# silent.


ANSWER_LIMIT_S = 0.5  # a healthy daemon answers within milliseconds
SILENT_AGAIN_S = 2.0  # after silence, so that a stopped daemon takes at most a fifth of the time
SILENT_SAID_S = 3.0  # a shorter silence is no news


def ask_to_finish(daemon: LocalDaemon) -> None:
    """Ask a node's trainer to end after its mini-batch; nothing happens if the daemon does not answer."""
    with suppress(P2psgdError), _client(daemon, ANSWER_LIMIT_S) as client:
        client.request("finish")


def end_trainer(daemon: LocalDaemon) -> None:
    """Send SIGTERM to the trainer that is attached to a node, if the daemon names one."""
    with suppress(P2psgdError, ProcessLookupError), _client(daemon, ANSWER_LIMIT_S) as client:
        pid = read_status(client.request("status")["status"]).trainer.pid
        if pid is not None:
            os.kill(pid, signal.SIGTERM)


def fetch_compression(daemon: LocalDaemon) -> Compression | None:
    """Get how a node's own updates compress, tensor by tensor; None when the daemon does not answer."""
    with suppress(P2psgdError, ValidationError), _client(daemon, ANSWER_LIMIT_S) as client:
        fields = client.request("compression")["compression"]
        return Compression.model_validate(fields) if fields else None
    return None


def copy_replica(daemon: LocalDaemon) -> NodeReplica:
    """Get a copy of a node's replica; raises P2psgdError when the daemon is gone or gives something else."""
    with ControlClient(control_path(daemon.directory)) as client:
        answer, coordinates, script = fetch_replica(client)
    return NodeReplica(
        daemon.name,
        answer.mode,
        answer.quantum_log2,
        answer.digest,
        coordinates,
        answer.weights,
        trained_weights(script, answer.weights),
        end_of(script),
    )


def _client(daemon: LocalDaemon, timeout_s: float) -> ControlClient:
    return ControlClient(control_path(daemon.directory), timeout_s=timeout_s)


# ----------------------------------------------------------------------------
# Who is alive and what they say: the one place where a node of a local run becomes a lost one.
#
# Joins the processes (cluster.py) with their statuses. A node that dies is lost and the others go
# on; only a daemon that ends by itself stops the run, if it never trained or a person must act, for then
# something is wrong with how it was started, or with its script.


TURN_S = 0.1  # how soon a dead daemon is noticed
LOOK_EVERY_S = 0.5  # how often the daemons are asked for their status


class Watch:
    """The nodes of a run, looked at again and again and shown on a display."""

    def __init__(self, cluster: Cluster, names: list[str], display: Display, output: ScriptOutput) -> None:
        self.lost: dict[str, str] = {}  # node -> what became of it
        self._cluster = cluster
        self._names = names
        self._display = display
        self._output = output
        self._latest = {name: NodeStatus(node=name) for name in names}
        self._answered: dict[str, float] = {}  # by name: when its latest status came
        self._not_before: dict[str, float] = {}  # by name: when a silent one is asked again
        self._speeds = {name: Speed() for name in names}  # in samples
        self._paces = {name: Speed() for name in names}  # in steps
        self._next_look = 0.0

    @property
    def live(self) -> list[LocalDaemon]:
        """The daemons that are not lost."""
        return [daemon for daemon in self._cluster.daemons if daemon.name not in self.lost]

    @property
    def unfinished(self) -> list[LocalDaemon]:
        """The live daemons whose trainers have not finished."""
        return [daemon for daemon in self.live if not self._has_finished(daemon)]

    @property
    def without_run(self) -> list[LocalDaemon]:
        """The live daemons that no script has attached to yet, and that know no run either."""
        return [daemon for daemon in self.live if self._status(daemon.name).run is None]

    @property
    def running(self) -> list[LocalDaemon]:
        """The live daemons whose script still runs, or is about to be started again."""
        found = []
        for daemon in self.live:
            trainer, group = self._status(daemon.name).trainer, daemon.group_trainer
            runs = trainer.running or trainer.restart_in_s
            if runs or (group is not None and (group.running or group.restarting)):
                found.append(daemon)
        return found

    def _has_finished(self, daemon: LocalDaemon) -> bool:
        group = daemon.group_trainer
        return self._status(daemon.name).trainer.finished or (group is not None and group.ended)

    @property
    def crashed(self) -> dict[str, str]:
        """Return how the scripts of live nodes crashed that were not started again, by node."""
        trainers = {
            daemon.name: daemon.group_trainer or self._status(daemon.name).trainer for daemon in self.live
        }
        return {name: each.crash for name, each in trainers.items() if each.crash and not each.running}

    def run(self, part: int | None) -> RunStatus | None:
        """Return what the live nodes report about the run of this part, None: of their whole model; None when
        none of them knows one.
        """
        live = (daemon for daemon in self.live if daemon.part == part)
        return next((run for daemon in live if (run := self._status(daemon.name).run)), None)

    def statuses(self) -> list[NodeStatus]:
        """Return the latest status of every node, in order; of a lost one with what became of it."""
        statuses = {name: self._status(name) for name in self._names}
        for name, why in self.lost.items():
            lost = {"state": NodeState.LOST, "waits": f"lost ({in_short(why)})"}
            statuses[name] = statuses[name].model_copy(update=lost)
        return list(statuses.values())

    def speeds(self) -> dict[str, float | None]:
        """Return the mean samples per second of each node over its time in training, None where unknown."""
        return {name: speed.per_s for name, speed in self._speeds.items()}

    def paces(self) -> dict[str, float | None]:
        """Return the mean steps per second of each node over its time in training, None where unknown."""
        return {name: pace.per_s for name, pace in self._paces.items()}

    def frontiers(self, part: int | None) -> dict[str, Frontier]:
        """Return what every live node has applied of this part, as far as it was heard."""
        live = (daemon for daemon in self.live if daemon.part == part)
        return {daemon.name: frontier_of(self._status(daemon.name)) for daemon in live}

    def all_answered_since(self, moment: float) -> bool:
        """Return whether the statuses of all live nodes are newer than `moment`."""
        return all(self._answered.get(daemon.name, -1.0) > moment for daemon in self.live)

    def turn(self, phase: str) -> bool:
        """Wait a moment, note who has died, ask for statuses if it is time for it; return whether it was."""
        time.sleep(TURN_S)
        self.note_the_dead(phase)
        looking = time.monotonic() >= self._next_look
        if looking:
            for daemon in self.live:
                if time.monotonic() >= self._not_before.get(daemon.name, 0):
                    self._ask(daemon)
            self._next_look = time.monotonic() + LOOK_EVERY_S
        self._display.say(*self._output.read())
        self._display.show(phase, self.statuses())
        return looking

    def note_the_dead(self, phase: str) -> None:
        """Make nodes whose daemon has ended lost ones; raises UsageError if one could not even start, or if a
        person must act.
        """
        for daemon in self.live:
            code = daemon.exit_code
            if code is None:
                continue
            words = f": {daemon.last_words}" if code > 0 and daemon.last_words else ""
            steps = self._status(daemon.name).trainer.steps
            if code in FINAL or (code >= 0 and not steps):
                self._report_end(daemon, code)
                when = "" if steps else " at the start"
                raise UsageError(f"{daemon.name} {daemon.ending}{when}{words}", _exit_code(code))
            self.lose(daemon, f"{daemon.ending}{words}", phase)

    def lose(self, daemon: LocalDaemon, why: str, phase: str) -> None:
        """Give a node up: it is shown as lost from now on, and nothing of it stays behind."""
        self.lost[daemon.name] = why
        self._cluster.discard(daemon)
        self._display.show(phase, self.statuses(), at_once=True)

    def _report_end(self, daemon: LocalDaemon, code: int) -> None:
        """Show what the node's script printed last, if that has failed and is not shown anyway."""
        self._display.say(*self._output.read_all())
        if code == ExitCode.TRAINER and not self._output.shows(daemon.node):
            self._display.say(f"{daemon.name} printed last:", *daemon.report)

    def _ask(self, daemon: LocalDaemon) -> None:
        try:
            with _client(daemon, ANSWER_LIMIT_S) as client:
                status = read_status(client.request("status")["status"])
        except DaemonLost:
            self._not_before[daemon.name] = time.monotonic() + SILENT_AGAIN_S
        except UsageError:
            pass  # it does not listen yet, or no longer: the process table says which
        else:
            self._latest[daemon.name] = status.model_copy(update={"node": daemon.name})
            self._answered[daemon.name] = time.monotonic()
            self._speeds[daemon.name].note(status.trainer.samples, self._answered[daemon.name])
            self._paces[daemon.name].note(status.trainer.steps, self._answered[daemon.name])

    def _status(self, name: str) -> NodeStatus:
        """Return a node's last status, its bare name before the first, with a note when it is silent."""
        now = time.monotonic()
        silent_s = now - self._answered.get(name, now)
        if silent_s < SILENT_SAID_S:
            return self._latest[name]
        note = f"its daemon has not answered for {silent_s:.0f} s"
        return self._latest[name].model_copy(update={"waits": note})


def _exit_code(code: int) -> ExitCode:
    """Return the code as one of ours, never the one for success."""
    try:
        return ExitCode(code) or ExitCode.FAILED
    except ValueError:
        return ExitCode.FAILED


# ----------------------------------------------------------------------------
# `p2psgd local`: start N nodes, watch them train, prove that their replicas are the same, stop them.
#
# The phases follow each other in LocalRun.execute(). One thread, no loop: every turn looks at the processes,
# and now and then at their statuses.


CONVERGENCE_LIMIT_S = 60.0  # without any progress of any frontier
STOP_LIMIT_S = 80.0  # a daemon's trainer ends within 10 s, it flushes for up to 30 s, and so long it may save
SCRIPT_LIMIT_S = 600.0  # how long a script may evaluate and save after its training
FINISH_LIMIT_S = 30.0  # how long trainers that were asked to finish may take for their last mini-batch

TRAINING = "training"
STOPPING = "stopping (Ctrl+C again kills)"
CONVERGING = "waiting until all have every update"
COMPARING = "comparing the replicas byte by byte"
COMPARED_AGAIN_MAX = 3  # times, if nodes go on while their replicas are read
ENDING = "waiting until the scripts have ended"


def run_local(plan: Plan, console: Console) -> ExitCode:
    """Run a plan's daemons and trainers on this machine until they have trained, and compare their replicas.

    For the main thread: it takes signals (base/interruption.py).

    Returns OK only if all replicas are identical and no node was lost. Raises UsageError with a daemon's own
    sentence and exit code when it could not start.
    """
    code = ExitCode.FAILED
    try:
        with Interruption() as interruption, Cluster(plan) as cluster:
            code = LocalRun(plan, cluster, interruption, console).execute()
    except KeyboardInterrupt:
        _print(console, "killed: all daemons and trainers were ended at once, and nothing was compared")
    finally:
        if plan.keep_state or code is not ExitCode.OK:
            _print(console, f"logs and state are in {plan.state}")
        else:
            shutil.rmtree(plan.state, ignore_errors=True)
    return code


class LocalRun:
    """A run of a plan, from the first process to the summary."""

    def __init__(self, plan: Plan, cluster: Cluster, interruption: Interruption, console: Console) -> None:
        self._plan = plan
        self._cluster = cluster
        self._interruption = interruption
        self._console = console
        what = f"recipe {plan.recipe.name}" if plan.recipe else "own trainer"
        self._display = Display(console, f"p2psgd local, {formatting.counted(plan.nodes, 'node')}, {what}")
        self._output = ScriptOutput.of(plan)
        self._watch = Watch(cluster, plan.replicas, self._display, self._output)
        self._parts: list[int | None] = [None] if plan.parts is None else [*range(plan.parts)]
        self._stop_limit_s = STOP_LIMIT_S + 2 * plan.failure_timeout_s
        self._convergence_limit_s = max(CONVERGENCE_LIMIT_S, 12 * plan.failure_timeout_s)
        self._convergences: dict[int | None, Convergence] = {}
        self._cut_short = False  # the user wanted the end before all had trained

    def execute(self) -> ExitCode:
        """Go through all phases; UsageError if a daemon cannot start, KeyboardInterrupt on a second
        Ctrl+C.
        """
        began = time.monotonic()
        try:
            self._cluster.start()
        except OSError as error:
            raise UsageError(f"the nodes cannot be started: {error}", ExitCode.TEMPORARY) from error
        with self._display:
            first = shlex.quote(str(self._plan.directory(0)))
            self._display.say(f"state is in {self._plan.state}; ask a node: p2psgd status --state {first}")
            if self._plan.http is not None:
                self._display.say(f"http://{self._plan.http} shows {self._plan.names[0]}")
            if self._plan.recipe is not None and self._plan.recipe.unused:
                self._display.say(self._plan.recipe.unused)
            if not self._train():
                return self._stop_untrained()
            self._cut_short = self._interruption.requested
            troubles = self._converge()
            equal_at = (each.equal_at for each in self._convergences.values())
            wall_s = (time.monotonic() if troubles else max(equal_at)) - began
            converged, proofs = not troubles, self._prove()
            for _ in range(COMPARED_AGAIN_MAX):
                differ = any(proof.findings for proof in proofs)
                if not (converged and differ and self._has_moved()):
                    break
                troubles = self._converge()
                converged, proofs = not troubles, self._prove()
            troubles += self._let_scripts_end()
            self._display.say(*self._output.read_all())
        outcome = self._outcome(proofs, wall_s, converged=converged)
        troubles += self._export()
        late = self._cluster.stop(self._stop_limit_s)
        self._display.say(*self._output.read_all())
        report = build_report(outcome)
        _print(self._console, summary_text(report))
        if self._plan.report is not None:
            try:
                write_report(self._plan.report, report)
            except OSError as error:
                troubles.append(f"the report cannot be written: {error}")
        troubles += [finding for proof in proofs if not self._is_excused(proof) for finding in proof.findings]
        troubles += [f"{name} did not stop within {self._stop_limit_s:.0f} s and was killed" for name in late]
        troubles += [lost_sentence(report)] if self._watch.lost else []
        if not (proofs or troubles):
            troubles.append("no node knew a run: nothing was trained")
        elif not (any(node["steps"] for node in report["per_node"]) or self._ended_early):
            troubles.append("no node has made a step")
        troubles += [f"{name}: {words}" for name, words in self._watch.crashed.items()]
        for sentence in troubles:
            _print(self._console, f"failed: {sentence}", style="red")
        return ExitCode.OK if report["replicas_identical"] and not troubles else ExitCode.FAILED

    def _is_excused(self, proof: Proof) -> bool:
        """Return whether scripts have ended at different evaluations because the user wanted the end."""
        return self._cut_short and proof.ended_apart

    @property
    def _ended_early(self) -> bool:
        """Return True if a run without a step may be as it was wanted."""
        return self._plan.recipe is None or self._interruption.requested

    def _train(self) -> bool:
        """Wait until the trainers of all live nodes have finished; see to it once the user wants the end.
        Return False if that was before the first step of any node.
        """
        while self._watch.unfinished:
            if self._interruption.requested:
                return self._stop_training()
            self._watch.turn(TRAINING)
        return True

    def _stop_training(self) -> bool:
        deadline = time.monotonic() + FINISH_LIMIT_S
        self._display.show(STOPPING, self._watch.statuses(), at_once=True)
        while not self._watch.turn(STOPPING):  # the latest statuses may be from before the first step
            pass
        if not any(status.trainer.steps or status.ring for status in self._watch.statuses()):
            return False
        for daemon in self._watch.without_run:
            self._watch.lose(daemon, "no script had attached to it", STOPPING)
        while unfinished := self._watch.unfinished:
            if time.monotonic() > deadline:
                names = formatting.listed([daemon.name for daemon in unfinished])
                self._display.say(
                    f"{names}: no end of training within {FINISH_LIMIT_S:.0f} s, the script may not have"
                    " attached yet, or not look at link.stopping; ended by SIGTERM"
                )
                for daemon in unfinished:
                    end_trainer(daemon)
                break
            if self._watch.turn(STOPPING):
                for daemon in unfinished:
                    ask_to_finish(daemon)
        return True

    def _stop_untrained(self) -> ExitCode:
        """End a run that the user has stopped before its first step."""
        self._cluster.stop(self._stop_limit_s)
        self._display.say(*self._output.read_all())
        _print(self._console, "stopped before any node had made a step: there is nothing to compare")
        return ExitCode.FAILED

    def _converge(self) -> list[str]:
        """Wait until the live nodes have applied the same updates; return what is missing if they do not."""
        since = time.monotonic()
        each = {}
        for part in self._parts:
            run = self._watch.run(part)
            settled_s = 0.0 if run is None else parse_mode(run.mode).settled_s
            each[part] = Convergence(self._convergence_limit_s, since, settled_s=settled_s)
        self._convergences = each
        while self._watch.live and not all(convergence.reached for convergence in each.values()):
            self._watch.turn(CONVERGING)
            if self._watch.all_answered_since(since):
                since = time.monotonic()
                for part, convergence in each.items():
                    convergence.look(self._watch.frontiers(part), since)
            if any(convergence.stalled(time.monotonic()) for convergence in each.values()):
                missing = [words for part in each for words in who_lacks_what(self._watch.frontiers(part))]
                words = "; ".join(missing or ["not every daemon answers"])
                return [f"no progress for {self._convergence_limit_s:.0f} s: {words}"]
        return []

    def _has_moved(self) -> bool:
        """Return whether a node has applied something since all were equal, as an owner may have published
        what it still had while replicas were read.
        """
        since = time.monotonic()
        while self._watch.live and not self._watch.all_answered_since(since):
            self._watch.turn(COMPARING)
        for part, convergence in self._convergences.items():
            convergence.look(self._watch.frontiers(part), time.monotonic())
        return not all(convergence.reached for convergence in self._convergences.values())

    def _prove(self) -> list[Proof]:
        """Compare the replicas of the live nodes, part by part; none when there is none to compare."""
        proofs = []
        for part in self._parts:
            run = self._watch.run(part)
            if run is None:
                return []
            self._display.show(COMPARING, self._watch.statuses(), at_once=True)
            key = int.from_bytes(bytes.fromhex(run.fingerprint)[:8], "little")
            proofs.append(prove(self._replicas(part), key))
            self._watch.turn(COMPARING)
        return proofs if all(proof.groups for proof in proofs) else []

    def _export(self) -> list[str]:
        """Write the weights of the first live node, if they are wanted; return what went wrong."""
        if self._plan.weights is not None and self._watch.live:
            try:
                home = self._watch.live[0].home
                if parts := part_directories(home) if self._plan.parts else []:
                    written = export_places(parts, self._plan.weights)
                else:
                    with ControlClient(control_path(home)) as client:
                        written = export_weights(client, self._plan.weights)
                self._display.say(f"{written} written to {self._plan.weights}")
            except P2psgdError as error:
                return [str(error)]
        return []

    def _let_scripts_end(self) -> list[str]:
        """Wait until no live node's own script runs any more, since it may evaluate and save after its
        training; return a sentence on those that take too long. Ctrl+C ends the wait.
        """
        deadline = time.monotonic() + SCRIPT_LIMIT_S
        while (running := self._watch.running) and not self._interruption.requested:
            if time.monotonic() > deadline:
                names = formatting.listed([daemon.name for daemon in running])
                return [
                    f"{names}: the script still ran {SCRIPT_LIMIT_S:.0f} s after its training and was ended"
                ]
            self._watch.turn(ENDING)
        return []

    def _replicas(self, part: int | None) -> Iterator[NodeReplica]:
        for daemon in self._watch.live:
            if daemon.part != part:
                continue
            try:
                yield copy_replica(daemon)
            except P2psgdError as error:
                time.sleep(TURN_S)  # until the end of the process, if that is what happened, can be seen
                self._watch.note_the_dead(COMPARING)
                if daemon.name not in self._watch.lost:
                    self._watch.lose(daemon, f"gave no replica: {error}", COMPARING)

    def _outcome(self, proofs: Sequence[Proof], wall_s: float, *, converged: bool) -> Outcome:
        groups = [group for proof in proofs for group in proof.groups]
        identical = (
            bool(proofs) and converged and all(proof.identical or self._is_excused(proof) for proof in proofs)
        )
        accuracies: dict[str, float] = {}
        if self._plan.recipe is not None:
            for group in groups:
                _, accuracy = evaluate(self._plan.recipe, group[0].weights)
                accuracies |= {replica.node: accuracy for replica in group}
        return Outcome(
            statuses=self._watch.statuses(),
            speeds=self._watch.speeds(),
            paces=self._watch.paces(),
            wall_s=wall_s,
            recipe=self._plan.recipe.name if self._plan.recipe else None,
            trainer=self._plan.trainer,
            identical=identical,
            digest=proofs[0].digest if identical and self._plan.parts is None else None,
            parts=self._plan.parts,
            part_digests=[proof.digest for proof in proofs if proof.digest is not None] if identical else [],
            digests={replica.node: replica.content_digest for group in groups for replica in group},
            accuracies=accuracies,
            ends=[proof.ends for proof in proofs if self._is_excused(proof)],
            lost=self._watch.lost,
            compression={daemon.name: fetch_compression(daemon) for daemon in self._watch.live},
        )


def _print(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it is: what looks like markup is none, and long lines stay whole in logs."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
