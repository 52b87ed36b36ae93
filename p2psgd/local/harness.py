"""`p2psgd local`: start N nodes, watch them train, prove that their replicas are the same, stop them.

The phases follow each other in LocalRun.execute(). One thread, no loop: every turn looks at the processes,
and now and then at their statuses.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from p2psgd.errors import ExitCode, P2psgdError, UsageError
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.paths import control_path
from p2psgd.local.cluster import Cluster
from p2psgd.local.convergence import Convergence, who_lacks_what
from p2psgd.local.display import Display
from p2psgd.local.interruption import Interruption
from p2psgd.local.observer import ask_to_finish, end_trainer, fetch_compression, fetch_replica
from p2psgd.local.plan import Plan
from p2psgd.local.proof import NodeReplica, Proof, prove
from p2psgd.local.recorded import Recorded, look_at_recording
from p2psgd.local.report import Outcome, build_report, write_report
from p2psgd.local.summary import lost_sentence, summary_text
from p2psgd.local.watch import TURN_S, Watch
from p2psgd.ops import numerals
from p2psgd.ops.weights import export_weights, write_tensors
from p2psgd.trainer.data import load_data_of
from p2psgd.trainer.evaluation import evaluate, net_shape
from p2psgd.trainer.initial import load_initial
from p2psgd.trainer.pretraining import pretrain

CONVERGENCE_LIMIT_S = 60.0  # without any progress of any frontier
STOP_LIMIT_S = 80.0  # a daemon's trainer ends within 10 s, it flushes for up to 30 s, and so long it may save
FINISH_LIMIT_S = 30.0  # how long trainers that were asked to finish may take for their last mini-batch

TRAINING = "training"
STOPPING = "stopping (Ctrl+C again kills)"
CONVERGING = "waiting until all have every update"
COMPARING = "comparing the replicas byte by byte"


def run_local(plan: Plan, console: Console) -> ExitCode:
    """Run a plan's daemons and trainers on this machine until they have trained, and compare their replicas.

    Signals: see interruption.py; for the main thread.

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
    """One run of a plan, from the first process to the summary."""

    def __init__(self, plan: Plan, cluster: Cluster, interruption: Interruption, console: Console) -> None:
        self._plan = plan
        self._cluster = cluster
        self._interruption = interruption
        self._console = console
        what = f"recipe {plan.recipe.name}" if plan.recipe else "own trainer"
        self._display = Display(console, f"p2psgd local, {numerals.counted(plan.nodes, 'node')}, {what}")
        self._watch = Watch(cluster, plan.names, self._display)
        self._stop_limit_s = STOP_LIMIT_S + 2 * plan.patience_s
        self._convergence_limit_s = max(CONVERGENCE_LIMIT_S, 12 * plan.patience_s)

    def execute(self) -> ExitCode:
        """Go through all phases; UsageError if a daemon cannot start, KeyboardInterrupt on a 2nd signal."""
        if self._plan.pretrains:
            self._pretrain()
        began = time.monotonic()
        try:
            self._cluster.start()
        except OSError as error:
            raise UsageError(f"the nodes cannot be started: {error}", ExitCode.TEMPORARY) from error
        with self._display:
            if self._plan.http is not None:
                self._display.say(f"http://{self._plan.http} shows {self._plan.names[0]}")
            if self._plan.recipe is not None and self._plan.recipe.unused:
                self._display.say(self._plan.recipe.unused)
            self._train()
            troubles = self._converge()
            wall_s = time.monotonic() - began
            proof = self._prove()
        outcome = self._outcome(proof, wall_s, converged=not troubles)
        troubles += self._export()
        late = self._cluster.stop(self._stop_limit_s)
        report = build_report(outcome)
        recorded = self._look_at_recording(report["recording"])
        report["recording"] = recorded.recording
        _print(self._console, summary_text(report))
        if recorded.words:
            _print(self._console, recorded.words, style="yellow")
        if self._plan.report is not None:
            try:
                write_report(self._plan.report, report)
            except OSError as error:
                troubles.append(f"the report cannot be written: {error}")
        troubles += proof.findings if proof else []
        troubles += [f"{name} did not stop within {self._stop_limit_s:.0f} s and was killed" for name in late]
        troubles += [lost_sentence(report)] if self._watch.lost else []
        if not (proof or troubles):
            troubles.append("no node knew a run: nothing was trained")
        elif not any(node["steps"] for node in report["per_node"]):
            troubles += self._why_nothing_was_trained()
        for sentence in troubles:
            _print(self._console, f"failed: {sentence}", style="red")
        return ExitCode.OK if report["replicas_identical"] and not troubles else ExitCode.FAILED

    def _pretrain(self) -> None:
        """Make the weights that all nodes start from, unless an earlier life of this run has; UsageError if
        that life's are of another net, or damaged.
        """
        plan = self._plan
        assert plan.recipe is not None
        assert plan.starts_from is not None
        dataset = load_data_of(plan.recipe)
        if plan.starts_from.exists():
            load_initial(plan.starts_from, net_shape(plan.recipe, dataset))
            return
        shown = ""

        def say(words: str) -> None:
            nonlocal shown
            if self._interruption.requested:
                raise UsageError("interrupted while pre-training: no node was started", ExitCode.FAILED)
            what = words.partition(",")[0]
            if what != shown:
                _print(self._console, what)
                shown = what

        write_tensors(plan.starts_from, pretrain(plan.recipe, dataset, say))

    def _train(self) -> None:
        """Wait until the trainers of all live nodes have finished; see to it once the user wants the end."""
        while self._watch.unfinished:
            if self._interruption.requested:
                self._stop_training()
                return
            self._watch.turn(TRAINING)

    def _stop_training(self) -> None:
        deadline = time.monotonic() + FINISH_LIMIT_S
        self._display.show(STOPPING, self._watch.statuses(), at_once=True)
        while unfinished := self._watch.unfinished:
            if time.monotonic() > deadline:
                names = numerals.listed([daemon.name for daemon in unfinished])
                self._display.say(
                    f"{names}: no end of training within {FINISH_LIMIT_S:.0f} s, the script may not look at"
                    " link.stopping; ended by SIGTERM"
                )
                for daemon in unfinished:
                    end_trainer(daemon)
                return
            if self._watch.turn(STOPPING):
                for daemon in unfinished:
                    ask_to_finish(daemon)

    def _converge(self) -> list[str]:
        """Wait until the live nodes have applied the same updates; return what is missing if they do not."""
        since = time.monotonic()
        convergence = Convergence(self._convergence_limit_s, since)
        while self._watch.live and not convergence.reached:
            self._watch.turn(CONVERGING)
            if self._watch.all_answered_since(since):
                since = time.monotonic()
                convergence.look(self._watch.frontiers(), since)
            if convergence.stalled(time.monotonic()):
                missing = who_lacks_what(self._watch.frontiers()) or ["not every daemon answers"]
                return [f"no progress for {self._convergence_limit_s:.0f} s: {'; '.join(missing)}"]
        return []

    def _prove(self) -> Proof | None:
        """Compare the replicas of the live nodes; None when there is none to compare."""
        run = self._watch.run
        if not run:
            return None
        self._display.show(COMPARING, self._watch.statuses(), at_once=True)
        key = int.from_bytes(bytes.fromhex(run["fingerprint"])[:8], "little")
        proof = prove(self._replicas(), key)
        self._watch.turn(COMPARING)
        return proof if proof.groups else None

    def _export(self) -> list[str]:
        """Write the weights of the first live node, if they are wanted; return what went wrong."""
        if self._plan.weights is not None and self._watch.live:
            try:
                with ControlClient(control_path(self._watch.live[0].directory)) as client:
                    export_weights(client, self._plan.weights)
            except P2psgdError as error:
                return [str(error)]
        return []

    def _why_nothing_was_trained(self) -> list[str]:
        """Where the built-in trainer has not come to its first mini-batch, unasked."""
        if self._plan.recipe is None or self._interruption.requested:
            return []
        return ["no node has trained a mini-batch"]

    def _look_at_recording(self, recording: Mapping[str, Any] | None) -> Recorded:
        """What the first node has left of the recording; known only once its daemon has stopped."""
        if self._plan.record is None:
            return Recorded(None)
        name = self._plan.names[0]
        return look_at_recording(
            self._plan.record, recording, lost=name if name in self._watch.lost else None
        )

    def _replicas(self) -> Iterator[NodeReplica]:
        for daemon in self._watch.live:
            try:
                yield fetch_replica(daemon)
            except P2psgdError as error:
                time.sleep(TURN_S)  # until the end of the process, if that is what happened, can be seen
                self._watch.note_the_dead(COMPARING)
                if daemon.name not in self._watch.lost:
                    self._watch.lose(daemon, f"gave no replica: {error}", COMPARING)

    def _outcome(self, proof: Proof | None, wall_s: float, *, converged: bool) -> Outcome:
        groups = proof.groups if proof else ()
        accuracies: dict[str, float] = {}
        if self._plan.recipe is not None:
            for group in groups:
                _, accuracy = evaluate(self._plan.recipe, group[0].weights)
                accuracies |= {replica.node: accuracy for replica in group}
        return Outcome(
            statuses=self._watch.statuses(),
            speeds=self._watch.speeds(),
            wall_s=wall_s,
            recipe=self._plan.recipe.name if self._plan.recipe else None,
            identical=proof is not None and proof.identical and converged,
            digest=proof.digest if proof and converged else None,
            digests={replica.node: replica.digest for group in groups for replica in group},
            accuracies=accuracies,
            lost=self._watch.lost,
            compression={daemon.name: fetch_compression(daemon) for daemon in self._watch.live},
        )


def _print(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it is: what looks like markup is none, and long lines stay whole in logs."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
