"""One node's status as text for people: `p2psgd status`, which without --json prints this.

A pure function of the status JSON. One fact per line, in the order in which somebody looks for them: is it
training, what holds it up, with whom is it connected, what was refused. Lines that would say nothing are left
out.
"""

from __future__ import annotations

from p2psgd.ops import numerals
from p2psgd.ops.figures import (
    NodeFigures,
    PeerFigures,
    Status,
    node_figures,
    number,
    printable,
    section,
    whole,
)
from p2psgd.ops.replication_text import log_words, replication_lines
from p2psgd.ops.ring_text import ring_lines
from p2psgd.ops.step_split import describe_steps, steps_words

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
    facts += [f"up {numerals.duration(number(status, 'uptime_s'))}"] if "uptime_s" in status else []
    return f"{node.node}: {', '.join(facts)}" if facts else node.node


def _run(status: Status) -> str:
    run = section(status, "run")
    if not run:
        return "none yet: the first trainer brings it, and this node neither dials nor answers before"
    label = f"{printable(run['label'])}: " if run.get("label") else ""
    shards = f"data in {numerals.counted(whole(run, 'shards'), 'shard')}, " if whole(run, "shards") else ""
    return (
        f"{label}{printable(run.get('mode', ''))}, {numerals.counted(whole(run, 'weights'), 'weight')} in "
        f"{numerals.counted(whole(run, 'tensors'), 'tensor')}, {shards}"
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
        facts.append(f"mini-batch {numerals.grouped(node.mini_batches)}")
    if node.samples_per_s is None and node.mini_batches_per_s is not None:
        facts.append(f"{numerals.decimals(node.mini_batches_per_s, 1)} mini-batches/s")
    for value, text in (
        (node.epoch, f"epoch {numerals.decimals(node.epoch, 2)}"),
        (node.samples_per_s, f"{numerals.grouped(node.samples_per_s)} samples/s"),
        (node.loss, f"loss {numerals.decimals(node.loss, 3)}"),
        (node.test_accuracy, f"test accuracy {numerals.percent(node.test_accuracy)}"),
    ):
        facts += [text] if value is not None else []
    for key, one in (
        ("restarts", "restart"),
        ("reloads", "reload"),
        ("refused_requests", "refused request"),
    ):
        facts += [numerals.counted(whole(trainer, key), one)] if whole(trainer, key) else []
    if mended := whole(trainer, "copies_mended"):
        facts.append(f"its copy of the weights was wrong {numerals.counted(mended, 'time')}")
    return ", ".join(facts)


def _steps(status: Status) -> str:
    steps = describe_steps([section(status, "trainer")])
    return f"{numerals.grouped(steps['steps'])}, each {steps_words(steps)}" if steps else ""


def _updates(status: Status, node: NodeFigures) -> str:
    if node.dense:
        return ""
    updates = section(status, "updates")
    facts = [
        f"{numerals.grouped(node.updates_sent)} sent",
        f"{numerals.grouped(node.updates_applied)} applied",
    ]
    duplicates = whole(updates, "duplicates")
    facts += [f"{numerals.counted(duplicates, 'duplicate')} dropped"] if duplicates else []
    if node.bits_per_index is not None:
        facts.append(f"{numerals.decimals(node.bits_per_index, 2)} bits per index")
    if node.compression_ratio is not None:
        facts.append(f"compression {numerals.times(node.compression_ratio)}")
    return ", ".join(facts)


def _traffic(status: Status) -> str:
    traffic = section(status, "bytes")
    if not traffic:
        return ""
    lag_ms = number(status, "loop_lag_ms")
    lag = f"; loop lag {numerals.decimals(lag_ms, 1)} ms" if lag_ms is not None else ""
    sent, received = numerals.size(whole(traffic, "sent")), numerals.size(whole(traffic, "received"))
    return f"{sent} sent, {received} received{lag}"


def recording_words(recording: Status) -> str:
    """What a node has recorded so far, and why no more if it has ended."""
    if not recording:
        return ""
    updates, size = numerals.counted(whole(recording, "updates"), "update"), whole(recording, "bytes")
    note = f"; {printable(recording['note'])}" if recording.get("note") else ""
    return f"{updates} in {numerals.size(size)} in {printable(recording.get('file', '?'))}{note}"


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
        f"by p2psgd doctor, {numerals.counted(count, 'time')}" if (count := whole(status, "doctors")) else ""
    )


def _refused(status: Status) -> list[str]:
    """Which nodes of other runs were, when, and how they differ."""
    return [
        f"{numerals.duration(number(each, 'since_s'))} ago: {printable(each.get('words', '?'))}"
        for each in status.get("strangers") or ()
    ]


def _peers(node: NodeFigures) -> list[str]:
    if not node.peers:
        return _line("peers", "none")
    return [line for peer in node.peers for line in _line("peer", _peer(peer, dense=node.dense))]


def _peer(peer: PeerFigures, *, dense: bool) -> str:
    address = f" at {peer.address}" if peer.address not in ("", peer.node) else ""
    since = f" for {numerals.duration(peer.since_s)}" if peer.since_s is not None else ""
    facts = [f"{peer.node}{address}: {peer.state}{since}"]
    if peer.lag is not None and not dense:
        facts.append(f"lacks {numerals.counted(peer.lag, 'update')} of ours")
    if peer.bytes_sent or peer.bytes_received:
        facts.append(f"{numerals.size(peer.bytes_sent)} sent, {numerals.size(peer.bytes_received)} received")
    facts += [f"round trip {numerals.milliseconds(peer.round_trip_ms)}"] if peer.round_trip_ms else []
    facts += [words] if (words := trouble_words(peer)) else []
    return ", ".join(facts)


def trouble_words(peer: PeerFigures) -> str:
    """Why it is not linked, and through whom its updates come all the same; empty if nothing is known."""
    if not peer.through:
        return peer.error
    reason = f" ({peer.error})" if peer.error else ""
    return f"not reached directly{reason}, its updates come through {peer.through}"
