"""A node's status as Prometheus metrics: a pure function of the model, so that no two views disagree.

Counters start again with the daemon. Peers, tensors and reasons are label values, bounded by the run and
capped here all the same; what `p2psgd status` says in sentences is not here, except that there is something
to say. Those of the process are read from /proc for each answer, on the loop: that is memory of the kernel's,
for which no disk is waited for, and what cannot be opened there is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from p2psgd.observe.status import DENSE_BITS, Compression, NodeState, NodeStatus, PeerState, RunStatus
from p2psgd.observe.text import PARTS

# Every version of Prometheus reads this format.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PEERS_MAX: Final = 64
TENSORS_MAX: Final = 64  # the largest
REASONS_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 200
STATES: Final = [state for state in NodeState if state not in (NodeState.STARTING, NodeState.LOST)]

Row = tuple[Mapping[str, object], float | None]


class Metrics:
    """A collector of the answer to `/metrics`; `status` returns the present status, with the whole
    compression.
    """

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(status))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        return ()  # so that nothing is collected to register it

    def collect(self) -> Iterable[Metric]:
        return node_metrics(self._status())


def node_metrics(status: NodeStatus) -> Iterator[Metric]:
    """Yield the families of one status; what is not known yet is left out, never guessed."""
    for part in (_node, _training, _updates, _links, _replication, _ring, _owners, _log):
        yield from (family for family in part(status) if family.samples)


def _node(status: NodeStatus) -> Iterator[Metric]:
    run = status.run or RunStatus()
    info = {"node": status.node, "id": status.id, "version": status.version}
    info |= {"fingerprint": run.fingerprint, "mode": run.mode, "label": run.label}
    yield _gauge("node_info", "What this node is, and the run it takes part in.", [(info, 1)])
    yield _one("uptime_seconds", "Since the daemon started.", status.uptime_s)
    states = _by_label("state", {state: status.state is state for state in STATES})
    yield _gauge("state", "1 for the state the node is in.", states)
    yield _one("ready", "1 if this node is a member whose replica is complete.", status.ready)
    waits = bool(status.waits or status.not_ready)
    yield _one("waiting", "1 if `p2psgd status` names something this node waits for.", waits)
    lag = None if status.loop_lag_ms is None else status.loop_lag_ms * 1e-3
    yield _one("loop_lag_seconds", "How late the daemon's loop runs.", lag)
    if status.http is not None:
        answered = _by_label("code", status.http.answered)
        yield _counts("http_answers", "Answers over HTTP, by status code.", answered)
        cut = _by_label("reason", status.http.cut)
        yield _counts("http_connections_cut", "HTTP connections that got no answer, by reason.", cut)
    yield _one("alarms", "Alarms in the status, 20 at most.", len(status.alarms))
    yield _one("plaintext", "1 if its links are not encrypted.", status.plaintext)
    left = None if status.tls is None else status.tls.expires_s
    yield _one("certificate_left_seconds", "Until its certificate ends; below 0: it has.", left)
    if status.events is not None:
        yield _count("events", "Events in this node's log, also of earlier lives.", status.events.count)
        yield _count("event_failures", "Events that are not in the file.", status.events.failures)


def _training(status: NodeStatus) -> Iterator[Metric]:
    trainer = status.trainer
    yield _one("weights", "Weights of the model.", None if status.run is None else status.run.weights)
    yield _one("trainer_attached", "1 if a trainer is attached.", trainer.attached)
    yield _count("trainer_restarts", "Starts of the trainer after it had ended.", trainer.restarts)
    yield _count("steps", "Steps, over all incarnations of the node.", trainer.steps)
    yield _count("samples", "Samples that this node's trainers have trained.", trainer.samples)
    yield _one("steps_per_second", "Speed of the trainer, as the daemon counts.", trainer.steps_per_s)
    yield _one("samples_per_second", "Speed of the trainer.", trainer.samples_per_s)
    together = None if status.pace is None else status.pace.steps_per_s
    yield _one("run_steps_per_second", "Speed of all nodes together, as far as it is heard here.", together)
    part = trainer.step / trainer.of if trainer.of else None
    yield _one("progress_ratio", "Part of the training that is done.", part)
    yield _one("epoch", "Passes over this node's share of the data.", trainer.epoch)
    yield _one("loss", "Loss, as the trainer reports it.", trainer.loss)
    yield _one("test_accuracy_ratio", "Share of the test right.", trainer.test_accuracy)
    parts = _by_label("part", {part: getattr(trainer, f"{part}_s") for part in PARTS})
    yield _counts("step_seconds", "Time in steps, by what the trainer did.", parts)
    yield _count("timed_steps", "Steps that took this time.", trainer.timed_steps)


def _updates(status: NodeStatus) -> Iterator[Metric]:
    updates, run = status.updates, status.run or RunStatus()
    if updates is not None:
        yield _count("updates_sent", "Own updates; each goes to every peer.", updates.sent)
        yield _count("updates_applied", "Updates applied from peers.", updates.applied)
        yield _count("updates_duplicate", "Updates that had come already.", updates.duplicates)
    if status.compression is None:
        return
    total, recent = status.compression.total, status.compression.recent
    yield _count("update_indices", "Weight indices in own updates.", total.indices)
    sizes = _by_label("part", {part: bits / 8 for part, bits in total.bits.by_name().items()})
    yield _counts("update_bytes", "Own updates as sent to one peer, by what the bytes are for.", sizes)
    dense = run.weights * total.steps * DENSE_BITS / 8
    yield _count("dense_bytes", "The gradients of the same mini-batches as float32.", dense)
    bits = _by_label("window", {"all": total.bits_per_index, "recent": recent.bits_per_index})
    yield _gauge("bits_per_index", "Bits of own updates for each weight index, headers included.", bits)
    density = _by_label("window", {"all": total.density, "recent": recent.density})
    yield _gauge("density_ratio", "Share of the weights that a mini-batch changes.", density)
    yield from _tensors(status.compression, 2.0**run.quantum_log2)


def _tensors(compression: Compression, quantum: float) -> Iterator[Metric]:
    rows = sorted(compression.tensors, key=lambda row: -row.weights)[:TENSORS_MAX]
    named = [({"tensor": row.name}, row) for row in rows]
    indices = ((labels, row.indices) for labels, row in named)
    yield _counts("tensor_indices", "Weight indices of a tensor in own updates.", indices)
    density = ((labels, row.recent_density) for labels, row in named)
    yield _gauge("tensor_density_ratio", "Share of a tensor that a recent mini-batch changes.", density)
    tau = ((labels, row.threshold * quantum or None) for labels, row in named)
    yield _gauge("tensor_tau", "Change of a weight in the last update of the tensor.", tau)


def _links(status: NodeStatus) -> Iterator[Metric]:
    if status.bytes is not None:
        yield _count("network_sent_bytes", "Bytes sent to all peers.", status.bytes.sent)
        yield _count("network_received_bytes", "Bytes received from all peers.", status.bytes.received)
    states = [peer.state for peer in status.peers]
    counted = _by_label("state", {state: states.count(state) for state in PeerState})
    yield _gauge("peers", "Peers by the state of the link to them, of the first 128.", counted)
    told = {(peer.node, peer.id or ""): peer for peer in status.peers[:PEERS_MAX]}
    named = [({"peer": name, "id": node}, peer) for (name, node), peer in told.items()]
    up = ((labels, peer.state is PeerState.CONNECTED) for labels, peer in named)
    yield _gauge("link_up", "1 if the peer is linked and heard.", up)
    lag = ((labels, peer.lag) for labels, peer in named)
    yield _gauge("link_lag_updates", "Own updates that the peer has not acknowledged.", lag)
    sent = ((labels, peer.bytes_sent) for labels, peer in named)
    yield _counts("link_sent_bytes", "Bytes sent to a peer.", sent)
    received = ((labels, peer.bytes_received) for labels, peer in named)
    yield _counts("link_received_bytes", "Bytes received from a peer.", received)
    yield _one("slow_links", "Peers that take less than is made.", len(status.slow_links))
    dropped = _by_label("reason", status.dropped)
    yield _counts("links_dropped", "Links and greetings ended, by reason.", dropped)


def _replication(status: NodeStatus) -> Iterator[Metric]:
    view, stall, checkpoint = status.view, status.stall, status.checkpoint
    if view is not None:
        yield _one("view_number", "The latest view of the members known.", view.number)
        yield _one("members", "Members of that view.", view.members_total)
        yield _one("view_waiting", "1 if the next view waits for votes.", bool(view.waits))
        yield _one("stalled", "1 if the trainer is held up until others are back.", stall is not None)
        yield _one("stalled_seconds", "For how long it has been.", stall.since_s if stall else 0.0)
    if checkpoint is not None:
        yield _one("checkpoint_age_seconds", "Since the last checkpoint.", checkpoint.age_s)
        yield _one("checkpoint_bytes", "Its size.", checkpoint.bytes)
        yield _count("checkpoint_failures", "Checkpoints that were not written.", checkpoint.failures)
    if status.scrub is not None:
        yield _one("replica_clean", "0 if the last scrub found damage.", status.scrub.clean)
    for name, value in status.counters or ():
        yield _count(name, f"{name.replace('_', ' ').capitalize()}, see docs/reference/status.md.", value)


def _ring(status: NodeStatus) -> Iterator[Metric]:
    ring = status.ring
    if ring is not None:
        yield _one("ring_round", "The last complete round.", ring.round)
        if status.owners is None:
            yield _one("ring_nodes", "Members around the ring.", ring.nodes)
        yield _one("ring_running", "1 if a round is under way.", ring.running)
        yield _one("ring_waiting", "1 if a member is waited for.", bool(ring.waiting_for))
        yield _one("ring_since_seconds", "Since the last round or generation.", ring.since_s)


def _owners(status: NodeStatus) -> Iterator[Metric]:
    owners = status.owners
    if owners is not None:
        yield _one("owned_weights", "Weights that this node owns.", owners.end - owners.first)
        yield _one("rule_state_bytes", "What the rule keeps for them.", owners.state_bytes)
        yield _one("rule_kept_bytes", "What is kept of other owners' rules.", owners.kept_bytes)
        yield _one("contributions_waiting", "Contributions that no update covers.", owners.waiting)
        yield _one("contributions_waiting_bytes", "What they take.", owners.waiting_bytes)
        yield _one("cover_lag_seconds", "Since the oldest of them was made.", owners.oldest_s)
        words = "Contributions that another owner got and that may count twice."
        yield _count("contributions_lost", words, owners.lost)
        yield _gauge("rule_info", "1, with the rule of owners as a label.", [({"rule": owners.rule}, 1)])


def _log(status: NodeStatus) -> Iterator[Metric]:
    log = status.log
    if log is None:
        return
    yield _one("log_updates", "Updates kept for whoever lacks them.", log.updates)
    held = _by_label("place", {"memory": log.bytes, "disk": log.stored_bytes})
    yield _gauge("log_bytes", "What they take.", held)
    budget = _by_label("place", {"memory": log.budget_bytes, "disk": log.stored_budget_bytes})
    yield _gauge("log_budget_bytes", "What they may take.", budget)
    yield _one("log_pressure_ratio", "At 1 members that hold it back are evicted.", log.pressure)


# -- families


def _one(name: str, words: str, value: float | None) -> Metric:
    return _gauge(name, words, [({}, value)])


def _gauge(name: str, words: str, rows: Iterable[Row]) -> Metric:
    return _filled(lambda labels: GaugeMetricFamily(f"p2psgd_{name}", words, labels=labels), rows)


def _count(name: str, words: str, value: float) -> Metric:
    return _counts(name, words, [({}, value)])


def _counts(name: str, words: str, rows: Iterable[Row]) -> Metric:
    return _filled(lambda labels: CounterMetricFamily(f"p2psgd_{name}", words, labels=labels), rows)


def _by_label(label: str, values: Mapping[str, float | None]) -> list[Row]:
    return [({label: name}, value) for name, value in sorted(values.items())[:REASONS_MAX]]


def _filled(
    family: Callable[[list[str]], GaugeMetricFamily | CounterMetricFamily], rows: Iterable[Row]
) -> Metric:
    known = [(labels, value) for labels, value in rows if value is not None]
    metric = family(list(known[0][0]) if known else [])
    for labels, value in known:
        metric.add_metric([str(label)[:LABEL_CHARACTERS_MAX] for label in labels.values()], float(value))
    return metric
