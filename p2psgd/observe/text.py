"""The status in words: of one node line by line, of a run as a table or in one line.

Pure functions of the model (status.py); the caller asks again and draws again. `p2psgd status`, `top` and the
page show the same lines. What peers wrote is escaped where it leaves this file.

More than 700 lines, since all words about a node stand in one place, in the order in which they are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2psgd.base import formatting
from p2psgd.base.formatting import counted, decimals, duration, grouped, printable, size
from p2psgd.observe.status import (
    NEWS_S,
    EvaluationStatus,
    LogStatus,
    MemberStatus,
    NodeState,
    NodeStatus,
    OwnersStatus,
    PaceStatus,
    PeerState,
    PeerStatus,
    RingStatus,
    TrainerStatus,
    bits_per_index,
    compression_ratio,
)

COORDINATE_MAX: Final = 2**24  # from here on float32 no longer holds every multiple of the quantum
LABEL_WIDTH: Final = 12
HELD_BACK: Final = 0.75  # of the log: from here on it is trimmed, so what is left has a reason
NAMED_MAX: Final = 8  # nodes of a ring in one line
RARE: Final = (  # counters worth a word when they are not 0
    ("evictions_seen", "eviction", None),
    ("reapplied", "own update applied again after a snapshot", "own updates applied again after a snapshot"),
    ("quarantines", "quarantine", None),
    ("held_back", "update put off for lack of room", "updates put off for lack of room"),
    (
        "lost_durability",
        "update dropped before all had it on disk",
        "updates dropped before all had them on disk",
    ),
    ("lost_updates", "UPDATE LOST", "UPDATES LOST"),
)

Rates = Mapping[
    str, float
]  # per second: "steps", "sent", "received", "sent KEY" of a peer, "updates ID", ...


class Grade(StrEnum):
    """The grade of a line: how much it needs a person."""

    NONE = ""
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"  # about a node that has ended as it should


SEVERITY: Final = (Grade.BAD, Grade.WARN, Grade.GOOD, Grade.IDLE)


class Line(NamedTuple):
    """A line of a status; without words it is left out."""

    label: str
    words: str
    grade: Grade = Grade.NONE


def render_status(status: NodeStatus) -> str:
    """Return one node's status as lines of text, without a newline at the end."""
    lines = (f"{line.label:<{LABEL_WIDTH}}{line.words}" for line in status_lines(status))
    return "\n".join([printable(_heading(status)), *lines])


def status_lines(status: NodeStatus, rates: Rates | None = None) -> list[Line]:
    """Return every line but the first, escaped: one fact each, in the order in which somebody looks for them.

    Is it training, what holds it up, which peers are connected, what was refused. With `rates`, which take
    several statuses, a peer's line gives these instead of its address and its sums.
    """
    return [line._replace(words=printable(line.words)) for line in _lines(status, rates) if line.words]


def _lines(status: NodeStatus, rates: Rates | None) -> Iterator[Line]:
    yield Line("state", status.state)
    elsewhere = {status.not_ready, status.stall.words if status.stall else ""}  # in lines of their own below
    yield from (Line("note", note, Grade.WARN) for note in notes(status) if note not in elsewhere)
    yield Line("run", _run(status))
    yield Line("fingerprint", status.run.fingerprint if status.run else "")
    yield Line("listens", _listens(status))
    yield Line("tls", _tls(status))
    yield Line("shown at", f"http://{status.http.address}" if status.http and status.http.address else "")
    yield Line("trainer", _trainer(status))
    steps = describe_steps([status.trainer])
    yield Line("steps", f"{grouped(steps['steps'])}, each {steps_words(steps)}" if steps else "")
    yield from ring_lines(status.ring)
    yield from owners_lines(status.owners)
    yield from evaluation_lines(status.evaluation)
    yield Line("updates", _updates(status))
    yield Line("traffic", _traffic(status))
    yield Line("log", "" if status.dense else log_words(status.log))
    yield from replication_lines(status)
    yield Line("replica", _replica(status))
    yield Line("dropped", _dropped(status))
    yield Line("looked at", f"by p2psgd doctor, {counted(status.doctors, 'time')}" if status.doctors else "")
    yield from (
        Line("refused", f"{duration(each.since_s)} ago: {each.words}", Grade.WARN)
        for each in status.strangers
    )
    yield from _peers(status, rates)


def notes(status: NodeStatus) -> list[str]:
    """Return what holds the node up and its alarms, each once, the gravest first."""
    if status.state is NodeState.LOST:
        return [status.waits]
    said: list[str] = []
    if not status.finished:
        said += filter(None, dict.fromkeys((status.waits, status.trainer.waits)))
        crash = (
            "" if status.trainer.attached else status.trainer.crash
        )  # news while there is no other trainer
        said += [crash] if crash and not any(crash in each for each in said) else []
        if not said and status.state is NodeState.WAITING:
            said.append(status.state)
    said += [alarm for alarm in status.alarms if not any(alarm in each for each in said)]
    return list(dict.fromkeys(said))


def _heading(status: NodeStatus) -> str:
    facts = [f"id {status.id}"] if status.id else []
    facts += [f"pid {status.pid}"] if status.pid else []
    facts += [f"p2psgd {status.version}"] if status.version else []
    facts += [f"up {duration(status.uptime_s)}"] if status.uptime_s is not None else []
    return f"{status.node}: {', '.join(facts)}" if facts else status.node


def _run(status: NodeStatus) -> str:
    run = status.run
    if run is None:
        return "none yet: the first trainer brings it, and this node neither dials nor answers before"
    label = f"{run.label}: " if run.label else ""
    shards = f"data in {counted(run.shards, 'shard')}, " if run.shards else ""
    return (
        f"{label}{run.mode}, {counted(run.weights, 'weight')} in {counted(run.tensors, 'tensor')}, {shards}"
        f"quantum 2^{run.quantum_log2}"
    )


def _listens(status: NodeStatus) -> str:
    if not status.listen or not status.plaintext:
        return status.listen
    option = " (--insecure-plaintext)" if status.insecure_plaintext else ""
    return f"{status.listen}; plaintext{option}: whoever reaches this port can read and join"


def _tls(status: NodeStatus) -> str:
    if status.tls is None:
        return ""
    trouble = f"; {status.tls.trouble}" if status.tls.trouble else ""
    return f"run {status.tls.run}, until {status.tls.expires[:10]}{trouble}"


def _trainer(status: NodeStatus) -> str:
    trainer = status.trainer
    attached = f"attached (pid {trainer.pid or 0})"
    facts = [attached if trainer.attached else "finished" if trainer.finished else "none attached"]
    facts += progress_facts(status)
    facts += [pace_words(status.pace)] if status.pace else []
    if trainer.test_accuracy is not None:
        facts.append(f"test accuracy {formatting.percent(trainer.test_accuracy)}")
    for count, one in (
        (trainer.restarts, "restart"),
        (trainer.reloads, "reload"),
        (trainer.refused_requests, "refused request"),
    ):
        facts += [counted(count, one)] if count else []
    if trainer.copies_mended:
        facts.append(f"its copy of the weights was wrong {counted(trainer.copies_mended, 'time')}")
    return ", ".join(facts)


def progress_facts(status: NodeStatus) -> list[str]:
    """Return how far the trainer is, and how fast: in samples, or in steps if it reports none."""
    trainer = status.trainer
    facts = [f"step {grouped(trainer.steps)}"] if trainer.steps else []
    facts += filter(None, [progress_words([status])])
    facts += [f"iteration {grouped(trainer.iteration)}"] if trainer.iteration else []
    facts += [f"loss {decimals(trainer.loss, 3)}"] if trainer.loss is not None else []
    if trainer.gradient_norm is not None:
        facts.append(f"gradient {trainer.gradient_norm:.2g}")
    if trainer.step_length is not None:
        facts.append(f"step length {trainer.step_length:.2g}")
    if not counts_samples(trainer) and trainer.steps_per_s is not None:
        facts.append(f"{decimals(trainer.steps_per_s, 1)} steps/s")
    if counts_samples(trainer):
        facts += [f"epoch {decimals(trainer.epoch, 2)}"] if trainer.epoch is not None else []
        facts += [f"{grouped(trainer.samples_per_s)} samples/s"] if trainer.samples_per_s is not None else []
    return facts


def pace_words(pace: PaceStatus) -> str:
    """Return how fast all nodes are together."""
    return f"{decimals(pace.steps_per_s, 1)} steps/s by {counted(pace.nodes, 'node')}"


def progress_words(statuses: Sequence[NodeStatus]) -> str:
    """Return how much of a training these nodes have behind them, all together, and how long the rest takes
    the last of them; empty if not all of those that train have said how much there is.
    """
    trainers = [each.trainer for each in statuses if each.trainer.attached or each.trainer.of]
    if not any(trainer.attached for trainer in trainers) or not all(trainer.of for trainer in trainers):
        return ""
    done, of = sum(trainer.step for trainer in trainers), sum(trainer.of for trainer in trainers)
    words = f"{math.floor(100 * done / of)} % of {grouped(of)} steps"
    going = [trainer for trainer in trainers if trainer.attached and trainer.step < trainer.of]
    left_s = [(each.of - each.step) / each.steps_per_s for each in going if each.steps_per_s]
    if going and len(left_s) == len(going):
        words += f", {duration(max(left_s))} left"
    return words


def counts_samples(trainer: TrainerStatus) -> bool:
    """Return whether the trainer reports samples or epochs; scripts are free not to."""
    return bool(trainer.samples or trainer.samples_per_s or trainer.epoch)


def _updates(status: NodeStatus) -> str:
    if status.dense:
        return ""
    updates = status.updates
    sent, applied, duplicates = (updates.sent, updates.applied, updates.duplicates) if updates else (0, 0, 0)
    facts = [f"{grouped(sent)} sent", f"{grouped(applied)} applied"]
    facts += [f"{counted(duplicates, 'duplicate')} dropped"] if duplicates else []
    if status.bits_per_index is not None:
        facts.append(f"{decimals(status.bits_per_index, 2)} bits per index")
    if status.compression_ratio is not None:
        facts.append(f"compression {formatting.times(status.compression_ratio)}")
    return ", ".join(facts)


def _traffic(status: NodeStatus) -> str:
    if status.bytes is None:
        return ""
    lag = f"; loop lag {decimals(status.loop_lag_ms, 1)} ms" if status.loop_lag_ms is not None else ""
    return f"{size(status.bytes.sent)} sent, {size(status.bytes.received)} received{lag}"


def log_words(log: LogStatus | None) -> str:
    """Return what the log holds, in memory and on disk, of what it may."""
    if log is None:
        return ""
    words = f"{counted(log.updates, 'update')} kept, {size(log.bytes)}"
    words += f" of at most {size(log.budget_bytes)}" if log.budget_bytes else ""
    if log.stored_budget_bytes:
        words += f" in memory, {size(log.stored_bytes)} of at most {size(log.stored_budget_bytes)} on disk"
    return f"{words}; {formatting.percent(log.pressure)} full" if log.pressure is not None else words


def _replica(status: NodeStatus) -> str:
    if not status.digest or status.coordinate_max is None:  # in a dense ring weights are no multiples
        return f"digest {status.digest}" if status.digest else ""
    largest = f"largest coordinate {status.coordinate_max:,} of at most {COORDINATE_MAX:,}"
    return f"digest {status.digest}; {largest}"


def _dropped(status: NodeStatus) -> str:
    said = {"forbidden": f" ({', '.join(forbidden_names(status))})" if forbidden_names(status) else ""}
    counts = sorted(status.dropped.items())
    return ", ".join(f"{count:,} x {reason}{said.get(reason, '')}" for reason, count in counts if count)


def forbidden_names(status: NodeStatus) -> list[str]:
    """Return the nodes that were removed for good, by name where one is known."""
    if status.view is None:
        return []
    known = {row.id: row.node for row in status.frontier} | {
        row.id: row.node for row in status.peers if row.id
    }
    return [known.get(node, node) for node in status.view.forbidden[:NAMED_MAX]]


def _peers(status: NodeStatus, rates: Rates | None) -> Iterator[Line]:
    """Yield a line for each peer, those that need a person first; members without a link are peers too."""
    members = {member.id: member for member in status.view.members} if status.view else {}
    graded = [(_grade(peer, members.get(peer.id or ""), status), peer) for peer in status.peers]
    counts = Counter(peer.state for peer in status.peers)
    facts = [f"{counts[state]} {state}" for state in PeerState if counts[state]]
    unlisted = status.peers_total - len(status.peers)
    facts += [f"{unlisted} more are not listed"] if unlisted > 0 else []
    yield Line("peers", ", ".join(facts) or "none")
    for grade, peer in sorted(graded, key=lambda each: SEVERITY.index(each[0])):
        yield Line("peer", _peer(peer, members.get(peer.id or ""), status, rates), grade)


def _grade(peer: PeerStatus, member: MemberStatus | None, status: NodeStatus) -> Grade:
    stranger = member is None and status.founded
    match peer.state:
        case PeerState.CONNECTED:
            return Grade.GOOD if status.view is None or (member and member.ready) else Grade.WARN
        case PeerState.STOPPED:
            return Grade.IDLE
        case PeerState.LOST if stranger:
            return Grade.IDLE
        case PeerState.LOST | PeerState.DIALLING:
            return Grade.WARN if peer.through else Grade.BAD
        case PeerState.SUSPECT:
            return Grade.BAD


def _peer(peer: PeerStatus, member: MemberStatus | None, status: NodeStatus, rates: Rates | None) -> str:
    name = peer.node or peer.address or "?"
    place = f" ({peer.id})" if peer.id not in (None, name) and rates is None else ""
    place += f" at {peer.address}" if peer.address not in ("", name) and rates is None else ""
    since = f" for {duration(peer.since_s)}" if peer.since_s is not None else ""
    facts = [f"{name}{place}: {peer.state}{since}"]
    if member is None:
        facts += ["not a member"] if status.founded else []
    elif peer.state is PeerState.CONNECTED:
        facts.append("ready" if member.ready else "not ready")
    else:
        facts.append("never heard" if member.heard_s is None else f"heard of {duration(member.heard_s)} ago")
    lag = peer.lag if peer.lag is not None or member is None else member.lag
    if lag is not None and not status.dense:
        facts.append(f"lacks {counted(lag, 'update')}{' of ours' if rates is None else ''}")
    if rates is None and (peer.bytes_sent or peer.bytes_received):
        facts.append(f"{size(peer.bytes_sent)} sent, {size(peer.bytes_received)} received")
    facts += _rates_of(peer, rates or {}, dense=status.dense)
    facts += [f"round trip {formatting.milliseconds(peer.round_trip_ms)}"] if peer.round_trip_ms else []
    return ", ".join([*facts, *filter(None, [_trouble(peer)])])


def _rates_of(peer: PeerStatus, rates: Rates, *, dense: bool) -> list[str]:
    ways = ((way, rates.get(f"{key} {peer.key}")) for way, key in (("out", "sent"), ("in", "received")))
    facts = [f"{way} {size(value)}/s" for way, value in ways if value is not None]
    made = None if dense else rates.get(f"updates {peer.id}")
    return facts if made is None else [*facts, f"{decimals(made, 1)} updates/s"]


def _trouble(peer: PeerStatus) -> str:
    """Return why a peer is not linked, and which node passes on its updates all the same."""
    if not peer.through:
        return peer.error
    reason = f" ({peer.error})" if peer.error else ""
    return f"not reached directly{reason}, its updates come through {peer.through}"


# ----------------------------------------------------------------------------
# Replication: view, log, checkpoint, scrub, snapshots, what is slow and what was rare.


def replication_lines(status: NodeStatus) -> Iterator[Line]:
    """Yield the lines on view, log, checkpoint and memory, none for a node without a run."""
    if status.ready is False:
        yield Line("not ready", status.not_ready or "nothing says why", Grade.WARN)
    elif alone := alone_words(status):
        yield Line("ready", alone, Grade.WARN)
    yield from _view(status)
    if status.stall is not None:
        yield Line("stalled", f"for {duration(status.stall.since_s)}: {status.stall.words}", Grade.WARN)
    log = status.log
    if log is not None and (log.pressure or 0.0) >= HELD_BACK:  # before, it is nobody's fault
        yield from (Line("holds log", f"{each.node}: {size(each.bytes)}", Grade.WARN) for each in log.holders)
    yield from _kept(status)
    for each in status.snapshots:
        done = f"{size(each.done_bytes)} of {size(each.total_bytes)}, {size(each.bytes_per_s)}/s"
        yield Line("snapshot", f"{'giving to' if each.giving else 'taking from'} {each.node}: {done}")
    counters = status.counters
    if counters is not None and (counters.snapshots_given or counters.snapshots_taken):
        yield Line("snapshots", f"{counters.snapshots_given} given, {counters.snapshots_taken} taken")
    for link in status.slow_links:
        speeds = f"takes {size(link.available)}/s of updates, all nodes make {size(link.needed)}/s"
        words = f"{link.node} {speeds}: it falls behind, and has to leave the run when the log is full"
        yield Line("slow link", words, Grade.WARN)
    if counters is not None:
        rare = [(getattr(counters, key), one, many) for key, one, many in RARE]
        yield Line("since start", ", ".join(counted(count, one, many) for count, one, many in rare if count))
    if status.events is not None and status.events.failures:
        lost = counted(status.events.failures, "event")
        yield Line("events", f"{lost} could not be written: {status.events.trouble}", Grade.WARN)


def alone_words(status: NodeStatus) -> str:
    """Return what a ready node waits for before the first view, and what it does meanwhile."""
    if not status.alone or status.view is None:
        return ""
    return unfounded_words(status.view.waits, ring=status.ring is not None)


def unfounded_words(waits: str, *, ring: bool) -> str:
    """Describe what the first view waits for, as `alone_words` does; in a ring no node trains alone."""
    meanwhile = "it waits" if ring else "it trains alone, and what it makes counts when the others come"
    return f"but {waits or 'the cluster has not formed'}; until then {meanwhile}"


def _view(status: NodeStatus) -> Iterator[Line]:
    view = status.view
    if view is None:
        return
    if not view.number:
        yield Line("view", "none yet: the cluster has not formed, and nothing leaves any log")
    else:
        facts = [f"{view.number}, {counted(view.members_total, 'member')}"]
        facts += [] if view.member else ["this node is not one of them"]
        named = f" ({', '.join(forbidden_names(status))})" if view.forbidden else ""
        facts += [f"{len(view.forbidden)} forbidden{named}"] if view.forbidden else []
        yield Line("view", ", ".join(facts))
    if not status.alone:
        yield Line("view", view.waits, Grade.WARN)


def _kept(status: NodeStatus) -> Iterator[Line]:
    checkpoint, scrub = status.checkpoint, status.scrub
    if checkpoint is not None:
        words = "none yet since this start"
        if checkpoint.number:
            words = f"{checkpoint.number}, {size(checkpoint.bytes)}, {duration(checkpoint.age_s)} ago"
        failures = counted(checkpoint.failures, "failure") if checkpoint.failures else ""
        trouble = Grade.WARN if checkpoint.trouble else Grade.NONE
        yield Line("checkpoint", "; ".join(filter(None, (words, failures, checkpoint.trouble))), trouble)
    if scrub is not None and scrub.clean is not None:
        found, grade = ("clean", Grade.NONE) if scrub.clean else ("NOT CLEAN", Grade.BAD)
        yield Line("scrub", f"{found} {duration(scrub.age_s)} ago, {scrub.count} in all", grade)


# ----------------------------------------------------------------------------
# The ring of a run: its round, its order, the nodes that it waits for and since when.


def ring_lines(ring: RingStatus | None) -> Iterator[Line]:
    """Yield the lines of the rounds of one node, in a ring or with owners; none if it waits for no others."""
    if ring is None:
        return
    facts = [f"{ring.payload}, round {grouped(ring.round)} is complete"]
    if ring.generation:
        facts.append(
            f"generation {ring.generation} of this view {'is under way' if ring.running else 'has ended'}"
        )
    label = "rounds" if ring.payload == "owners" else "ring"
    yield Line(
        label, ", ".join(facts if ring.active else [*facts, "this node only follows: it has no trainer"])
    )
    yield Line(label, _order(ring))
    yield Line(label, ring.wait, Grade.WARN)


def owners_lines(owners: OwnersStatus | None) -> Iterator[Line]:
    """Yield the lines of what one node owns and has contributed; none in another mode than `owners`."""
    if owners is None:
        return
    own = f"weights {grouped(owners.first)} to {grouped(owners.end - 1)}"
    own = own if owners.end > owners.first else "nothing"
    rule = f"rule {owners.rule}"
    if owners.state_bytes:
        rule += f" with {size(owners.state_bytes)} of state"
    if owners.kept_bytes:
        rule += f", {size(owners.kept_bytes)} of the states of other owners as their deputy"
    yield Line("owns", f"{own}, one of {counted(owners.owners, 'owner')}, {rule}")
    waits = f"{counted(owners.waiting, 'contribution')} not covered, {size(owners.waiting_bytes)}"
    grade = Grade.NONE
    if owners.waiting and owners.oldest_s >= NEWS_S:
        waits += f", the oldest, for {owners.slowest}, made {duration(owners.oldest_s)} ago"
        grade = Grade.WARN
    yield Line("gave", waits, grade)
    if owners.lost:
        words = f"{counted(owners.lost, 'contribution')} of an owner that was away may count twice"
        yield Line("gave", words, Grade.WARN)


def evaluation_lines(evaluation: EvaluationStatus | None) -> Iterator[Line]:
    """Yield the lines of how far evaluations are; none in another mode than `closure`."""
    if evaluation is None:
        return
    facts = [f"{counted(evaluation.last, 'evaluation')} complete"]
    if evaluation.waits:
        facts.append(
            f"number {grouped(evaluation.number)} is under way, {evaluation.leader} deals its portions"
        )
    elif not evaluation.number:
        facts.append("this node has no trainer")
    yield Line("evaluates", ", ".join(facts))
    if evaluation.portions:
        facts = [f"{evaluation.done} of {counted(evaluation.portions, 'portion')} done"]
        facts.append(f"{evaluation.leased} leased, {evaluation.again} leased again since the start")
        if evaluation.slowest and evaluation.slowest_s >= NEWS_S:
            facts.append(f"{evaluation.slowest} has had one for {duration(evaluation.slowest_s)}")
        if evaluation.fewest and 2 * evaluation.done >= evaluation.portions:  # before, it says little
            facts.append(f"{evaluation.fewest} has done the fewest, {evaluation.fewest_done}")
        yield Line("portions", ", ".join(facts))


def ring_words(statuses: Sequence[NodeStatus]) -> str:
    """Return the ring of all these nodes in a line; empty if none of them is in one.

    Of several that wait the one with the longest wait is quoted; nobody waits when all have finished.
    """
    told = [(status.node, status.ring) for status in statuses if status.ring is not None]
    if not told:
        return ""
    foremost = max((ring for _, ring in told), key=lambda ring: ring.round)
    words = [f"round {grouped(foremost.round)}"]
    words += [f"ring {order}"] if (order := _order(foremost)) else []
    waits = [(ring.since_s, f"{node}: {ring.wait}") for node, ring in told if ring.wait]
    if waits and any(ring.active for _, ring in told):
        words.append(max(waits)[1])
    return printable("; ".join(words))


def _order(ring: RingStatus) -> str:
    """Return the members around the ring; empty before the first generation."""
    more = max(ring.nodes, len(ring.order)) - NAMED_MAX
    return " > ".join(ring.order[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# ----------------------------------------------------------------------------
# Where trainers' time goes, as parts of a step: from what they report of themselves (recipes/telemetry.py).
#
# Computing, waiting, adding and sending make up the whole; what the daemons did meanwhile is beside them and
# may overlap with any.


PARTS: Final = ("computing", "waiting", "adding", "sending")
DAEMONS: Final = ("daemon_adding", "daemon_sending")


def describe_steps(trainers: Sequence[TrainerStatus]) -> dict[str, float] | None:
    """Return the number of all steps of these trainers together, the time of one, and its parts as fractions.

    None before the first step.
    """
    steps = sum(trainer.timed_steps for trainer in trainers)
    spent_s = {
        part: sum(getattr(trainer, f"{part}_s") for trainer in trainers) for part in (*PARTS, *DAEMONS)
    }
    total_s = sum(spent_s[part] for part in PARTS)
    if not steps or total_s <= 0:
        return None
    parts = {part: round(part_s / total_s, 4) for part, part_s in spent_s.items()}
    return {"steps": steps, "step_ms": round(1000 * total_s / steps, 4), **parts}


def steps_words(steps: Mapping[str, float]) -> str:
    """Describe the parts of a step in words; of what the daemons did only if they did it."""
    own = ", ".join(f"{part} {100 * steps[part]:.0f} %" for part in PARTS)
    step_ms = steps["step_ms"]
    words = f"{f'{step_ms:.2g}' if step_ms < 10 else grouped(step_ms)} ms: {own}"
    adding, sending = (f"{100 * steps[part]:.0f} %" for part in DAEMONS)
    if any(steps[part] for part in DAEMONS):
        words += f"; meanwhile in the daemon: adding {adding}, sending {sending}"
    return words


# ----------------------------------------------------------------------------
# A run at a glance: one row per node, below it in plain words what holds a node up, and what the columns
# mean. Fits 80 columns.


STATE_STYLES: Final = {
    "training": "green",
    "finished": "cyan",
    "waiting": "yellow",
    "draining": "cyan",
    "lost": "red",
}
HEADINGS: Final = ("node", "state", "steps", "epoch")
UPDATE_HEADINGS: Final = ("in", "out", "bits", "compr")  # not where whole gradients go around
SAMPLES: Final = ("smp/s", "samples a second")
STEPS: Final = ("stp/s", "steps a second")  # where no script has said how many samples a step has
LEGEND: Final = (
    "in: updates applied from peers; out: own updates, each goes to every peer; bits: sent per changed "
    "weight, headers included; compr: size of the gradients as float32 / bytes sent to one peer; "
)
LAG: Final = "lag: own updates that the slowest peer has not acknowledged"
ROUND: Final = "round: the last that is complete"  # in one nobody is ahead of anybody


def state_word(status: NodeStatus) -> str:
    """Return a node's state in one word."""
    return "finished" if status.finished else status.state.split()[0]


def live_table(statuses: Sequence[NodeStatus], *, title: str, sums: bool = True) -> RenderableType:
    """Draw the nodes in the order given, with `sums` also a row and a title for all of them together."""
    ring, dense = ring_words(statuses), any(status.dense for status in statuses)
    pace, meaning = SAMPLES if in_samples(statuses) else STEPS
    headings = (*HEADINGS, pace, "loss", *(() if dense else UPDATE_HEADINGS), "round" if ring else "lag")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=True)
    for status in statuses:
        state = Text(state_word(status), style=STATE_STYLES.get(state_word(status), ""))
        # Between node, state and the last column.
        figures = _figures(status, samples=pace in SAMPLES)[: len(headings) - 3]
        lag = max((peer.lag for peer in _followers(status, statuses) if peer.lag is not None), default=None)
        last = (status.ring.round if status.ring else None) if ring else lag
        table.add_row(Text(printable(status.node)), state, *map(Text, [*figures, formatting.short(last)]))
    if sums and len(statuses) > 1:
        total = _total(statuses, samples=pace in SAMPLES)
        table.add_row(*map(Text, [*total, *[""] * (len(headings) - len(total))]), style="bold")
    if sums and (words := progress_words(statuses)):
        title = f"{title}, {words}"
    below = [Text(note, style="red" if "lost" in note else "yellow") for note in shared_notes(statuses)]
    legend = f"steps: steps made; {pace}: {meaning}; {'' if dense else LEGEND}{ROUND if ring else LAG}"
    around = [Text(ring, style="bold")] if ring else []
    return Group(Text(title, style="bold"), table, *around, *below, Text(legend, style="dim"))


def shared_notes(statuses: Sequence[NodeStatus]) -> list[str]:
    """Return every note as `who: what`; nodes that have the same one to say share a sentence."""
    speakers: dict[str, list[str]] = {}
    for status in statuses:
        for note in notes(status):
            speakers.setdefault(note, []).append(status.node)
    return [printable(f"{formatting.listed(names)}: {note}") for note, names in speakers.items()]


def in_samples(statuses: Sequence[NodeStatus]) -> bool:
    """Return whether the pace of these nodes is given in samples, and not in steps: at least one counts them,
    or none trains yet.
    """
    trainers = [status.trainer for status in statuses]
    return any(map(counts_samples, trainers)) or not any(trainer.steps for trainer in trainers)


def _figures(status: NodeStatus, *, samples: bool) -> list[str]:
    count, trainer, updates = formatting.short, status.trainer, status.updates
    return [
        count(trainer.steps),
        decimals(trainer.epoch if counts_samples(trainer) else None, 2),
        _pace([trainer], samples=samples),
        decimals(trainer.loss, 3),
        count(updates.applied if updates else 0),
        count(updates.sent if updates else 0),
        decimals(status.bits_per_index, 1),
        formatting.times(status.compression_ratio),
    ]


def _pace(trainers: Sequence[TrainerStatus], *, samples: bool) -> str:
    """Return the samples, or the steps, that these make in a second; of those whose pace is known."""
    each = [
        (trainer.samples_per_s if counts_samples(trainer) else None) if samples else trainer.steps_per_s
        for trainer in trainers
    ]
    known = [pace for pace in each if pace is not None]
    pace = sum(known) if known else None
    return formatting.short(pace) if samples or (pace or 0) >= 100 else decimals(pace, 1)


def _total(statuses: Sequence[NodeStatus], *, samples: bool) -> list[str]:
    """Return the row of all nodes together, up to the mean of their losses."""
    trainers = [status.trainer for status in statuses]
    losses = [trainer.loss for trainer in trainers if trainer.loss is not None]
    return [
        *("all", "", formatting.short(sum(trainer.steps for trainer in trainers)), ""),
        _pace(trainers, samples=samples),
        decimals(sum(losses) / len(losses) if losses else None, 3),
    ]


def _followers(status: NodeStatus, statuses: Sequence[NodeStatus]) -> list[PeerStatus]:
    """Return the peers of a node that are not lost."""
    gone = {other.node for other in statuses if other.state is NodeState.LOST}
    return [] if status.node in gone else [peer for peer in status.peers if peer.node not in gone]


# ----------------------------------------------------------------------------
# A run in one line, for logs and pipes, where no table can be redrawn.


def progress_line(statuses: Sequence[NodeStatus]) -> str:
    """Return the states, the sums over all nodes and whatever holds some up."""
    live = [status for status in statuses if status.state is not NodeState.LOST]
    states = list(map(state_word, statuses))
    facts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    trainers = [status.trainer for status in live]
    facts += [_steps(trainers), progress_words(live)]
    speeds = [trainer.samples_per_s for trainer in trainers if trainer.samples_per_s]
    facts += [f"{grouped(sum(speeds))} samples/s"] if speeds else []
    paces = [trainer.steps_per_s for trainer in trainers if trainer.steps_per_s]
    facts += [f"{decimals(sum(paces), 1)} steps/s"] if paces and not speeds else []
    losses = [trainer.loss for trainer in trainers if trainer.loss is not None]
    facts += [f"loss {sum(losses) / len(losses):.3f}"] if losses else []
    bits, ratio = bits_per_index(statuses), compression_ratio(statuses)
    facts += [f"{decimals(bits, 1)} bits per index"] if bits is not None else []
    facts += [f"compression {formatting.times(ratio)}"] if ratio is not None else []
    lag = max((peer.lag or 0 for status in live for peer in _followers(status, statuses)), default=0)
    ring = ring_words(statuses)
    facts += [f"largest lag {lag}"] if lag and not ring else []
    return "; ".join(filter(None, [", ".join(filter(None, facts)), ring, *shared_notes(statuses)]))


def _steps(trainers: Sequence[TrainerStatus]) -> str:
    counts = [trainer.steps for trainer in trainers]
    least, most = min(counts, default=0), max(counts, default=0)
    if not most:
        return ""
    return f"step {least:,}" if least == most else f"steps {least:,} to {most:,}"
