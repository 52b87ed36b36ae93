"""The status as text: of one node, as a table of a run, in one line, and the parts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2psgd import formatting
from p2psgd.observe.figures import (
    LOST,
    NodeFigures,
    PeerFigures,
    Status,
    node_figures,
    number,
    printable,
    section,
    shared_notes,
    total_bits_per_index,
    total_compression_ratio,
    whole,
)
from p2psgd.observe.replication_text import log_words, replication_lines, ring_lines, ring_words

# ----------------------------------------------------------------------------
# A run at a glance: one row per node, below it in plain words what holds a node up, and what the columns
# mean.
#
# A pure function of the nodes' status JSON (see figures.py), drawn to fit 80 columns and, with whole words,
# 120. It asks nobody for anything and keeps no state: whoever shows it (p2psgd.cli.local) draws it again
# with newer statuses.


WIDE = 112  # columns from which there is room for whole words in the headings
LAG_VECTOR_NODES_WIDE = (
    8  # up to so many nodes there is room for one lag per peer; above, the largest is shown
)
LAG_VECTOR_NODES = 4  # the same, in 80 columns
STATE_STYLES = {"training": "green", "finished": "cyan", "waiting": "yellow", "draining": "cyan", LOST: "red"}

# (heading in full, heading in brief); the first two stand on the left, figures on the right
HEADINGS = (
    ("node", "node"),
    ("state", "state"),
    ("mini-batch", "batch"),
    ("epoch", "epoch"),
    ("samples/s", "smp/s"),
    ("loss", "loss"),
    ("updates in", "in"),
    ("updates out", "out"),
    ("bits/index", "bits"),
    ("compression", "compr"),
    ("lag", "lag"),
)
ROUND = ("round", "round")
RING_HEADINGS = (*HEADINGS[:-1], ROUND)  # in a round nobody is ahead of anybody
DENSE_HEADINGS = (*HEADINGS[:6], ROUND)  # and where whole gradients go around there are no updates


def live_table(statuses: Sequence[Status], *, title: str, width: int) -> RenderableType:
    """Draw the nodes in the order given; `width` is the number of columns there are.

    A node that has not answered yet may be given as {"node": name}, a lost one with the state "lost (why)".
    """
    nodes = [node_figures(status) for status in statuses]
    wide = width >= WIDE
    ring = ring_words(statuses)
    vector = not ring and 1 < len(nodes) <= (LAG_VECTOR_NODES_WIDE if wide else LAG_VECTOR_NODES)
    padding = (0, 2 if wide else 1, 0, 0)
    table = Table(box=None, pad_edge=False, padding=padding)
    dense = any(node.dense for node in nodes)
    shown = DENSE_HEADINGS if dense else RING_HEADINGS if ring else HEADINGS
    for place, headings in enumerate(shown):
        table.add_column(headings[0 if wide else 1], justify="left" if place < 2 else "right", no_wrap=True)
    for node in nodes:
        lag = _lag_vector(node, nodes) if vector else _lag_most(node, nodes)
        if ring:
            lag = (formatting.grouped if wide else formatting.short)(node.ring_round)
        figures = _figures(node, wide)[: len(shown) - 3]  # between node, state and the last column
        table.add_row(Text(node.node), Text(node.state, style=_style(node)), *map(Text, [*figures, lag]))
    notes = [Text(note, style="red" if LOST in note else "yellow") for note in shared_notes(nodes)]
    legend = Text(_legend(wide=wide, vector=vector, ring=bool(ring), dense=dense), style="dim")
    around = [Text(ring, style="bold")] if ring else []
    return Group(Text(title, style="bold"), table, *around, *notes, legend)


def _style(node: NodeFigures) -> str:
    return STATE_STYLES.get(node.state, "")


def _figures(node: NodeFigures, wide: bool) -> list[str]:
    count = formatting.grouped if wide else formatting.short
    return [
        count(node.mini_batches),
        formatting.decimals(node.epoch, 2),
        count(node.samples_per_s),
        formatting.decimals(node.loss, 3),
        count(node.updates_applied),
        count(node.updates_sent),
        formatting.decimals(node.bits_per_index, 1),
        formatting.times(node.compression_ratio),
    ]


def _lags(node: NodeFigures, nodes: Sequence[NodeFigures]) -> dict[str, int]:
    """Return the lag of each peer that is connected and alive."""
    gone = {row.node for row in nodes if row.state == LOST}
    if node.node in gone:
        return {}
    return {peer.node: peer.lag for peer in node.peers if peer.lag is not None and peer.node not in gone}


def _lag_vector(node: NodeFigures, nodes: Sequence[NodeFigures]) -> str:
    """Return the lag of each peer in the order of the rows, a dot for the node itself."""
    lags = _lags(node, nodes)
    return " ".join("." if row is node else _brief(lags.get(row.node)) for row in nodes)


def _lag_most(node: NodeFigures, nodes: Sequence[NodeFigures]) -> str:
    return _brief(max(_lags(node, nodes).values(), default=None))


def _brief(lag: int | None) -> str:
    """Return a lag in three characters, so that four of them fit: 0, 999, 12k."""
    if lag is None:
        return formatting.UNKNOWN
    return str(lag) if lag < 1_000 else f"{lag // 1_000}k"


def _legend(*, wide: bool, vector: bool, ring: bool, dense: bool) -> str:
    batch = "" if wide else "batch: mini-batches trained; smp/s: samples a second; "
    names = (
        ("updates in", "updates out", "bits/index", "compression") if wide else ("in", "out", "bits", "compr")
    )
    who = "each peer, in the order of the rows," if vector else "the slowest peer"
    lag = "round: the last that is complete" if ring else f"lag: own updates that {who} has not acknowledged"
    if dense:
        return f"{batch}{lag}"
    return (
        f"{batch}{names[0]}: updates applied from peers; {names[1]}: own updates, each goes to every peer; "
        f"{names[2]}: bits sent per changed weight, headers included; "
        f"{names[3]}: size of the gradients as float32 / bytes sent to one peer; "
        f"{lag}"
    )


# ----------------------------------------------------------------------------
# A run in one line, for logs and pipes, where no table can be redrawn. A pure function of the statuses.


def progress_line(statuses: Sequence[Status]) -> str:
    """Return the states, the sums over all nodes and whatever holds some up."""
    nodes = [node_figures(status) for status in statuses]
    live = [node for node in nodes if node.state != LOST]
    facts = [", ".join(_states(nodes)), _mini_batches(live)]
    speeds = [node.samples_per_s for node in live if node.samples_per_s]
    facts += [f"{formatting.grouped(sum(speeds))} samples/s"] if speeds else []
    if not speeds and (paces := [node.mini_batches_per_s for node in live if node.mini_batches_per_s]):
        facts.append(f"{formatting.decimals(sum(paces), 1)} mini-batches/s")
    losses = [node.loss for node in live if node.loss is not None]
    facts += [f"loss {sum(losses) / len(losses):.3f}"] if losses else []
    bits, ratio = total_bits_per_index(nodes), total_compression_ratio(nodes)
    facts += [f"{formatting.decimals(bits, 1)} bits per index"] if bits is not None else []
    facts += [f"compression {formatting.times(ratio)}"] if ratio is not None else []
    gone = {node.node for node in nodes if node.state == LOST}
    lag = max((peer.lag or 0 for node in live for peer in node.peers if peer.node not in gone), default=0)
    ring = ring_words(statuses)
    facts += [f"largest lag {lag}"] if lag and not ring else []
    return "; ".join(filter(None, [", ".join(filter(None, facts)), ring, *shared_notes(nodes)]))


def _states(nodes: Sequence[NodeFigures]) -> list[str]:
    states = [node.state for node in nodes]
    return [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]


def _mini_batches(nodes: Sequence[NodeFigures]) -> str:
    counts = [node.mini_batches for node in nodes]
    least, most = min(counts, default=0), max(counts, default=0)
    if not most:
        return ""
    return f"mini-batch {least:,}" if least == most else f"mini-batches {least:,} to {most:,}"


# ----------------------------------------------------------------------------
# Where trainers' time goes, as parts of a step: from what they report of themselves (recipes/telemetry.py).
#
# Pure functions of the trainers' part of a status. Computing, waiting, adding and sending make up the whole;
# what the daemons did meanwhile is beside them and may overlap with any.


PARTS: Final = ("computing", "waiting", "adding", "sending")
DAEMONS: Final = ("daemon_adding", "daemon_sending")


def describe_steps(trainers: Iterable[Status]) -> dict[str, Any] | None:
    """Of all steps of these trainers together: how many, how long one took, and the parts as fractions of
    it; None before the first step.
    """
    steps, spent_s = 0, dict.fromkeys((*PARTS, *DAEMONS), 0.0)
    for trainer in trainers:
        steps += whole(trainer, "steps")
        for part in spent_s:
            spent_s[part] += number(trainer, f"{part}_s") or 0.0
    total_s = sum(spent_s[part] for part in PARTS)
    if not steps or total_s <= 0:
        return None
    parts = {part: round(part_s / total_s, 4) for part, part_s in spent_s.items()}
    return {"steps": steps, "step_ms": round(1000 * total_s / steps, 4), **parts}


def steps_words(steps: Mapping[str, Any]) -> str:
    """The same in words; of what the daemons did only if they did it."""
    own = ", ".join(f"{part} {_percent(steps[part])}" for part in PARTS)
    words = f"{_time(steps['step_ms'])}: {own}"
    adding, sending = (steps[part] for part in DAEMONS)
    if adding or sending:
        words += f"; meanwhile in the daemon: adding {_percent(adding)}, sending {_percent(sending)}"
    return words


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _time(step_ms: float) -> str:
    return f"{step_ms:.2g} ms" if step_ms < 10 else f"{formatting.grouped(step_ms)} ms"


# ----------------------------------------------------------------------------
# One node's status as text for people: `p2psgd status`, which without --json prints this.
#
# A pure function of the status JSON. One fact per line, in the order in which somebody looks for them: is it
# training, what holds it up, with whom is it connected, what was refused. Lines that would say nothing are
# left out.


COORDINATE_MAX = 2**24  # from here on float32 no longer holds every multiple of the quantum
LABEL_WIDTH = 12


def render_status(status: Status) -> str:
    """Return the whole status as lines of text, without a newline at the end."""
    node = node_figures(status)
    lines = [
        _heading(status, node),
        *_line("state", printable(status.get("state", "starting"))),
        *(line for note in node.notes for line in _line("note", note)),
        *_line("run", _run(status)),
        *_line("listens", _listens(status)),
        *_line("tls", _tls(status)),
        *_line("shown at", _shown(status)),
        *_line("trainer", _trainer(status, node)),
        *_line("steps", _steps(status)),
        *(line for label, text in ring_lines(status) for line in _line(label, text)),
        *_line("updates", _updates(status, node)),
        *_line("traffic", _traffic(status)),
        *_line("log", "" if node.dense else log_words(section(status, "log"))),
        *(line for label, text in replication_lines(status) for line in _line(label, text)),
        *_line("recording", recording_words(section(status, "recording"))),
        *_line("replica", _replica(status)),
        *_line("dropped", _dropped(status)),
        *_line("looked at", _doctors(status)),
        *(line for text in _refused(status) for line in _line("refused", text)),
        *_peers(node),
    ]
    return "\n".join(lines)


def _line(label: str, text: str) -> list[str]:
    return [f"{label:<{LABEL_WIDTH}}{text}"] if text else []


def _heading(status: Status, node: NodeFigures) -> str:
    facts = [f"id {printable(status['id'])}"] if status.get("id") else []
    facts += [f"pid {whole(status, 'pid')}"] if status.get("pid") else []
    facts += [f"p2psgd {printable(status['version'])}"] if status.get("version") else []
    facts += [f"up {formatting.duration(number(status, 'uptime_s'))}"] if "uptime_s" in status else []
    return f"{node.node}: {', '.join(facts)}" if facts else node.node


def _run(status: Status) -> str:
    run = section(status, "run")
    if not run:
        return "none yet: the first trainer brings it, and this node neither dials nor answers before"
    label = f"{printable(run['label'])}: " if run.get("label") else ""
    shards = f"data in {formatting.counted(whole(run, 'shards'), 'shard')}, " if whole(run, "shards") else ""
    return (
        f"{label}{printable(run.get('mode', ''))}, {formatting.counted(whole(run, 'weights'), 'weight')} in "
        f"{formatting.counted(whole(run, 'tensors'), 'tensor')}, {shards}"
        f"quantum 2^{whole(run, 'quantum_log2')}, fingerprint {printable(run.get('fingerprint', ''))}"
    )


def _listens(status: Status) -> str:
    if not status.get("listen"):
        return ""
    if not status.get("plaintext"):
        return printable(status["listen"])
    option = " (--insecure-plaintext)" if status.get("insecure_plaintext") else ""
    return f"{printable(status['listen'])}; plaintext{option}: whoever reaches this port can read and join"


def _tls(status: Status) -> str:
    tls = section(status, "tls")
    if not tls:
        return ""
    trouble = f"; {printable(tls['trouble'])}" if tls.get("trouble") else ""
    return f"run {printable(tls.get('run', ''))}, until {printable(tls.get('expires', ''))[:10]}{trouble}"


def _shown(status: Status) -> str:
    address = section(status, "http").get("address")
    return f"http://{printable(address)}" if address else ""


def _trainer(status: Status, node: NodeFigures) -> str:
    trainer = section(status, "trainer")
    if trainer.get("attached"):
        facts = [f"attached (pid {whole(trainer, 'pid')})"]
    else:
        facts = ["finished" if trainer.get("finished") else "none attached"]
    if node.mini_batches:
        facts.append(f"mini-batch {formatting.grouped(node.mini_batches)}")
    if node.samples_per_s is None and node.mini_batches_per_s is not None:
        facts.append(f"{formatting.decimals(node.mini_batches_per_s, 1)} mini-batches/s")
    for value, text in (
        (node.epoch, f"epoch {formatting.decimals(node.epoch, 2)}"),
        (node.samples_per_s, f"{formatting.grouped(node.samples_per_s)} samples/s"),
        (node.loss, f"loss {formatting.decimals(node.loss, 3)}"),
        (node.test_accuracy, f"test accuracy {formatting.percent(node.test_accuracy)}"),
    ):
        facts += [text] if value is not None else []
    for key, one in (
        ("restarts", "restart"),
        ("reloads", "reload"),
        ("refused_requests", "refused request"),
    ):
        facts += [formatting.counted(whole(trainer, key), one)] if whole(trainer, key) else []
    if mended := whole(trainer, "copies_mended"):
        facts.append(f"its copy of the weights was wrong {formatting.counted(mended, 'time')}")
    return ", ".join(facts)


def _steps(status: Status) -> str:
    steps = describe_steps([section(status, "trainer")])
    return f"{formatting.grouped(steps['steps'])}, each {steps_words(steps)}" if steps else ""


def _updates(status: Status, node: NodeFigures) -> str:
    if node.dense:
        return ""
    updates = section(status, "updates")
    facts = [
        f"{formatting.grouped(node.updates_sent)} sent",
        f"{formatting.grouped(node.updates_applied)} applied",
    ]
    duplicates = whole(updates, "duplicates")
    facts += [f"{formatting.counted(duplicates, 'duplicate')} dropped"] if duplicates else []
    if node.bits_per_index is not None:
        facts.append(f"{formatting.decimals(node.bits_per_index, 2)} bits per index")
    if node.compression_ratio is not None:
        facts.append(f"compression {formatting.times(node.compression_ratio)}")
    return ", ".join(facts)


def _traffic(status: Status) -> str:
    traffic = section(status, "bytes")
    if not traffic:
        return ""
    lag_ms = number(status, "loop_lag_ms")
    lag = f"; loop lag {formatting.decimals(lag_ms, 1)} ms" if lag_ms is not None else ""
    sent, received = formatting.size(whole(traffic, "sent")), formatting.size(whole(traffic, "received"))
    return f"{sent} sent, {received} received{lag}"


def recording_words(recording: Status) -> str:
    """What a node has recorded so far, and why no more if it has ended."""
    if not recording:
        return ""
    updates, size = formatting.counted(whole(recording, "updates"), "update"), whole(recording, "bytes")
    note = f"; {printable(recording['note'])}" if recording.get("note") else ""
    return f"{updates} in {formatting.size(size)} in {printable(recording.get('file', '?'))}{note}"


def _replica(status: Status) -> str:
    if not status.get("digest"):
        return ""
    digest = f"digest {printable(status['digest'])}"
    if status.get("coordinate_max") is None:  # in a dense ring: coordinates are bit patterns
        return digest
    return f"{digest}; largest coordinate {whole(status, 'coordinate_max'):,} of at most {COORDINATE_MAX:,}"


def _dropped(status: Status) -> str:
    counts = {
        printable(reason): whole(section(status, "dropped"), reason) for reason in section(status, "dropped")
    }
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()) if count)


def _doctors(status: Status) -> str:
    return (
        f"by p2psgd doctor, {formatting.counted(count, 'time')}"
        if (count := whole(status, "doctors"))
        else ""
    )


def _refused(status: Status) -> list[str]:
    """Which nodes of other runs were, when, and how they differ."""
    return [
        f"{formatting.duration(number(each, 'since_s'))} ago: {printable(each.get('words', '?'))}"
        for each in status.get("strangers") or ()
    ]


def _peers(node: NodeFigures) -> list[str]:
    if not node.peers:
        return _line("peers", "none")
    return [line for peer in node.peers for line in _line("peer", _peer(peer, dense=node.dense))]


def _peer(peer: PeerFigures, *, dense: bool) -> str:
    address = f" at {peer.address}" if peer.address not in ("", peer.node) else ""
    since = f" for {formatting.duration(peer.since_s)}" if peer.since_s is not None else ""
    facts = [f"{peer.node}{address}: {peer.state}{since}"]
    if peer.lag is not None and not dense:
        facts.append(f"lacks {formatting.counted(peer.lag, 'update')} of ours")
    if peer.bytes_sent or peer.bytes_received:
        facts.append(
            f"{formatting.size(peer.bytes_sent)} sent, {formatting.size(peer.bytes_received)} received"
        )
    facts += [f"round trip {formatting.milliseconds(peer.round_trip_ms)}"] if peer.round_trip_ms else []
    facts += [words] if (words := trouble_words(peer)) else []
    return ", ".join(facts)


def trouble_words(peer: PeerFigures) -> str:
    """Why it is not linked, and through whom its updates come all the same; empty if nothing is known."""
    if not peer.through:
        return peer.error
    reason = f" ({peer.error})" if peer.error else ""
    return f"not reached directly{reason}, its updates come through {peer.through}"
