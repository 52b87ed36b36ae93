"""A node's status as Prometheus metrics: a pure function of the status JSON, so that no two views disagree.

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

from p2psgd.observe.compression import BITS
from p2psgd.observe.figures import DENSE_BITS, Status, number, section, whole
from p2psgd.observe.text import PARTS

# Every version of Prometheus reads this format.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PEERS_MAX: Final = 64
TENSORS_MAX: Final = 64  # the largest
REASONS_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 200
STATES: Final = (
    "training",
    "waiting for a trainer",
    "waiting for the ring",
    "joining",
    "serving",
    "draining",
)
PEER_STATES: Final = ("connected", "suspect", "lost", "dialling", "stopped")

Labels = Mapping[str, object]
Row = tuple[Labels, float | None]


class Metrics:
    """What `/metrics` answers; `statuses` gives the status of now, with the whole compression."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(status))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        return ()  # so that nothing is collected to register it

    def collect(self) -> Iterable[Metric]:
        return node_metrics(self._status())


def node_metrics(status: Status) -> Iterator[Metric]:
    """The families of one status; what is not known yet is left out, never guessed."""
    for part in (_node, _training, _updates, _tensors, _links, _replication, _ring, _log):
        yield from (family for family in part(status) if family.samples)


def _node(status: Status) -> Iterator[Metric]:
    run = section(status, "run")
    info = {key: status.get(key, "") for key in ("node", "id", "version")}
    info |= {key: run.get(key, "") for key in ("fingerprint", "mode", "label")}
    yield _gauge("node_info", "What this node is, and the run it takes part in.", [(info, 1)])
    yield _one("uptime_seconds", "Since the daemon started.", number(status, "uptime_s"))
    states = [({"state": state}, float(status.get("state") == state)) for state in STATES]
    yield _gauge("state", "1 for the state the node is in.", states)
    yield _one("ready", "1 if this node is a member whose replica is complete.", _flag(status.get("ready")))
    waits = any(status.get(key) for key in ("waits", "not_ready"))
    yield _one("waiting", "1 if `p2psgd status` names something this node waits for.", _flag(waits))
    yield _one("loop_lag_seconds", "How late the daemon's loop runs.", _scaled(status, "loop_lag_ms", 1e-3))
    alarms = len(status.get("alarms") or ())
    http = section(status, "http")
    answered = _by_label("code", section(http, "answered"))
    yield _counts("http_answers", "Answers over HTTP, by status code.", answered)
    cut = _by_label("reason", section(http, "cut"))
    yield _counts("http_connections_cut", "HTTP connections that got no answer, by reason.", cut)
    yield _one("alarms", "Alarms in the status, 20 at most.", alarms)
    yield _one("plaintext", "1 if its links are not encrypted.", _flag(status.get("plaintext")))
    left = number(section(status, "tls"), "expires_s")
    yield _one("certificate_left_seconds", "Until its certificate ends; below 0: it has.", left)
    events = section(status, "events")
    yield _count("events", "Events in this node's log, also of earlier lives.", whole(events, "count"))
    yield _count("event_failures", "Events that are not in the file.", whole(events, "failures"))


def _training(status: Status) -> Iterator[Metric]:
    trainer, weights = section(status, "trainer"), section(status, "run")
    yield _one("weights", "Weights of the model.", number(weights, "weights"))
    yield _one("trainer_attached", "1 if a trainer is attached.", _flag(trainer.get("attached")))
    yield _count("trainer_restarts", "Starts of the trainer after it had ended.", whole(trainer, "restarts"))
    yield _count("mini_batches", "Mini-batches, over all lives.", whole(trainer, "mini_batches"))
    yield _count("samples", "Samples trained by the attached trainer.", whole(trainer, "samples"))
    yield _one("samples_per_second", "Speed of the trainer.", number(trainer, "samples_per_s"))
    yield _one("epoch", "Passes over this node's share of the data.", number(trainer, "epoch"))
    yield _one("loss", "Loss, as the trainer reports it.", number(trainer, "loss"))
    yield _one("test_accuracy_ratio", "Share of the test right.", number(trainer, "test_accuracy"))
    parts = [({"part": part}, number(trainer, f"{part}_s")) for part in PARTS]
    yield _counts("step_seconds", "Time in steps, by what the trainer did.", parts)
    yield _count("steps", "Steps that took this time.", whole(trainer, "steps"))


def _updates(status: Status) -> Iterator[Metric]:
    updates, compression = section(status, "updates"), section(status, "compression")
    total, recent = section(compression, "total"), section(compression, "recent")
    if updates:
        yield _count("updates_sent", "Own updates; each goes to every peer.", whole(updates, "sent"))
        yield _count("updates_applied", "Updates applied from peers.", whole(updates, "applied"))
        yield _count("updates_duplicate", "Updates that had come already.", whole(updates, "duplicates"))
    if total:
        yield _count("update_indices", "Weight indices in own updates.", whole(total, "indices"))
        bits = section(total, "bits")
        sizes: list[Row] = [({"part": part}, whole(bits, part) / 8) for part in BITS]
        yield _counts("update_bytes", "Own updates as sent to one peer, by what the bytes are for.", sizes)
        dense = whole(section(status, "run"), "weights") * whole(total, "mini_batches") * DENSE_BITS / 8
        yield _count("dense_bytes", "The gradients of the same mini-batches as float32.", dense)
    windows = (("all", total), ("recent", recent))
    yield _gauge(
        "bits_per_index",
        "Bits of own updates for each weight index, headers included.",
        [({"window": window}, number(part, "bits_per_index")) for window, part in windows],
    )
    yield _gauge(
        "density_ratio",
        "Share of the weights that a mini-batch changes.",
        [({"window": window}, number(part, "density")) for window, part in windows],
    )


def _tensors(status: Status) -> Iterator[Metric]:
    quantum = 2.0 ** whole(section(status, "run"), "quantum_log2")
    rows = list(section(status, "compression").get("tensors") or ())
    rows = sorted(rows, key=lambda row: -whole(row, "weights"))[:TENSORS_MAX]
    named = [({"tensor": row.get("name", "")}, row) for row in rows]
    indices = [(labels, float(whole(row, "indices"))) for labels, row in named]
    yield _counts("tensor_indices", "Weight indices of a tensor in own updates.", indices)
    density = [(labels, number(row, "recent_density")) for labels, row in named]
    yield _gauge("tensor_density_ratio", "Share of a tensor that a recent mini-batch changes.", density)
    tau = [(labels, whole(row, "step") * quantum or None) for labels, row in named]
    yield _gauge("tensor_tau", "Change of a weight in the last update of the tensor.", tau)


def _links(status: Status) -> Iterator[Metric]:
    traffic, peers = section(status, "bytes"), list(status.get("peers") or ())
    yield _count("network_sent_bytes", "Bytes sent to all peers.", whole(traffic, "sent"))
    yield _count("network_received_bytes", "Bytes received from all peers.", whole(traffic, "received"))
    counted = dict.fromkeys(PEER_STATES, 0.0)
    for peer in peers:
        if peer.get("state") in counted:
            counted[peer["state"]] += 1
    states = [({"state": state}, count) for state, count in counted.items()]
    yield _gauge("peers", "Peers by the state of the link to them, of the first 128.", states)
    told = {(peer.get("node", ""), peer.get("id") or ""): peer for peer in peers[:PEERS_MAX]}
    named = [({"peer": name, "id": node}, peer) for (name, node), peer in told.items()]
    up = [(labels, _flag(peer.get("state") == "connected")) for labels, peer in named]
    yield _gauge("link_up", "1 if the peer is linked and heard.", up)
    lag = [(labels, number(peer, "lag")) for labels, peer in named]
    yield _gauge("link_lag_updates", "Own updates that the peer has not acknowledged.", lag)
    sent = [(labels, number(peer, "bytes_sent")) for labels, peer in named]
    yield _counts("link_sent_bytes", "Bytes sent to a peer.", sent)
    received = [(labels, number(peer, "bytes_received")) for labels, peer in named]
    yield _counts("link_received_bytes", "Bytes received from a peer.", received)
    yield _one("slow_links", "Peers that take less than is made.", len(status.get("slow_links") or ()))
    dropped = _by_label("reason", section(status, "dropped"))
    yield _counts("links_dropped", "Links and greetings ended, by reason.", dropped)


def _replication(status: Status) -> Iterator[Metric]:
    view, stall = section(status, "view"), section(status, "stall")
    checkpoint, scrub = section(status, "checkpoint"), section(status, "scrub")
    if view:
        yield _one("view_number", "The latest view of the members known.", number(view, "number"))
        yield _one("members", "Members of that view.", number(view, "members_total"))
        yield _one("view_waiting", "1 if the next view waits for votes.", _flag(view.get("waits")))
        yield _one("stalled", "1 if the trainer is held up until others are back.", _flag(stall))
        yield _one("stalled_seconds", "For how long it has been.", number(stall, "since_s") or 0.0)
    if checkpoint:
        yield _one("checkpoint_age_seconds", "Since the last checkpoint.", number(checkpoint, "age_s"))
        yield _one("checkpoint_bytes", "Its size.", number(checkpoint, "bytes"))
        failures = whole(checkpoint, "failures")
        yield _count("checkpoint_failures", "Checkpoints that were not written.", failures)
    if scrub:
        yield _one("replica_clean", "0 if the last scrub found damage.", _flag(scrub.get("clean")))
    for name, value in section(status, "counters").items():
        yield _count(
            name, f"{name.replace('_', ' ').capitalize()}, see docs/explanation/reliability.md.", float(value)
        )


def _ring(status: Status) -> Iterator[Metric]:
    ring = section(status, "ring")
    if ring:
        yield _one("ring_round", "The last complete round.", number(ring, "round"))
        yield _one("ring_nodes", "Members around the ring.", number(ring, "nodes"))
        yield _one("ring_running", "1 if a round is under way.", _flag(ring.get("running")))
        yield _one("ring_waiting", "1 if a member is waited for.", _flag(ring.get("waiting_for")))
        yield _one("ring_since_seconds", "Since the last round or attempt.", number(ring, "since_s"))


def _log(status: Status) -> Iterator[Metric]:
    log = section(status, "log")
    yield _one("log_updates", "Updates kept for whoever lacks them.", number(log, "updates"))
    places: tuple[tuple[str, str], ...] = (("memory", ""), ("disk", "stored_"))
    held = [({"place": place}, number(log, f"{key}bytes")) for place, key in places]
    yield _gauge("log_bytes", "What they take.", held)
    budget = [({"place": place}, number(log, f"{key}budget_bytes")) for place, key in places]
    yield _gauge("log_budget_bytes", "What they may take.", budget)
    yield _one("log_pressure_ratio", "At 1 members that hold it back are evicted.", number(log, "pressure"))


# -- families


def _one(name: str, words: str, value: float | None) -> Metric:
    return _gauge(name, words, [({}, value)])


def _gauge(name: str, words: str, rows: Iterable[Row]) -> Metric:
    return _filled(lambda labels: GaugeMetricFamily(f"p2psgd_{name}", words, labels=labels), rows)


def _count(name: str, words: str, value: float) -> Metric:
    return _counts(name, words, [({}, value)])


def _counts(name: str, words: str, rows: Iterable[Row]) -> Metric:
    return _filled(lambda labels: CounterMetricFamily(f"p2psgd_{name}", words, labels=labels), rows)


def _by_label(label: str, counts: Status) -> list[Row]:
    return [({label: value}, float(count)) for value, count in sorted(counts.items())[:REASONS_MAX]]


def _filled(
    family: Callable[[list[str]], GaugeMetricFamily | CounterMetricFamily], rows: Iterable[Row]
) -> Metric:
    known = [(labels, value) for labels, value in rows if value is not None]
    metric = family(list(known[0][0]) if known else [])
    for labels, value in known:
        metric.add_metric([str(label)[:LABEL_CHARACTERS_MAX] for label in labels.values()], value)
    return metric


def _flag(truth: object) -> float | None:
    return None if truth is None else float(bool(truth))


def _scaled(part: Status, key: str, factor: float) -> float | None:
    value = number(part, key)
    return None if value is None else value * factor
