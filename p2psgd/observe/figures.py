"""One node's figures, read from its status JSON and put together for people.

Every view (the table of `p2psgd local`, the text of `p2psgd status`, the report) shows the same few figures;
they are derived here once, so that two views cannot disagree. Pure functions of the JSON. Keys that are
missing read as "not known yet", so that a view can also be drawn of a node that has only just started, or was
lost before it said anything.

This module does not ask daemons for their status (p2psgd.ipc does) and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2psgd import formatting

Status = Mapping[str, Any]

LOST = "lost"
FINISHED = "finished"
DENSE_BITS = 32  # what one weight of an uncompressed gradient takes: float32


def printable(text: object) -> str:
    """Return `text` with all that a terminal might obey escaped: parts of a status were written by peers."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def bits_per_index(bytes_sent: int, indices: int) -> float | None:
    """Return the bits one sent index took, sign, headers and frames included; None before the first index."""
    return 8 * bytes_sent / indices if indices > 0 else None


def compression_ratio(dense_weights: int, bytes_sent: int) -> float | None:
    """Return how many times smaller the updates were than float32 gradients of the same mini-batches.

    `dense_weights`: the sum over all mini-batches of the weights of the model; `bytes_sent`: what these
    mini-batches sent to one peer, headers and frames included ([Strom 2015] table 3, there without entropy
    coding). None before the first byte.
    """
    return DENSE_BITS * dense_weights / (8 * bytes_sent) if bytes_sent > 0 else None


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """What a node knows of one peer; `lag`: own updates it has not acknowledged, None when it is away."""

    node: str
    id: str
    address: str
    state: str
    lag: int | None
    since_s: float | None
    bytes_sent: int
    bytes_received: int
    round_trip_ms: float | None
    error: str
    through: str = ""  # who passes on its updates while it is not linked


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The figures of one node that all views share; None stands for "not known (yet)"."""

    node: str
    state: str  # one word; `notes` say more
    notes: tuple[str, ...]  # what it waits for or what became of it, in plain words
    weights: int
    mini_batches: int
    mini_batches_per_s: float | None
    epoch: float | None  # it and the speed in samples: None also of a script that does not report them
    samples: int
    samples_per_s: float | None
    loss: float | None
    test_accuracy: float | None
    updates_sent: int
    updates_applied: int
    indices_sent: int
    update_bytes: int
    ring_round: int | None  # the last complete one; None: not in ring mode
    dense: bool  # whole gradients go around: there are no updates to count
    peers: tuple[PeerFigures, ...]

    @property
    def bits_per_index(self) -> float | None:
        """Bits per sent index, as sent to one peer."""
        return bits_per_index(self.update_bytes, self.indices_sent)

    @property
    def compression_ratio(self) -> float | None:
        """Size of the uncompressed gradients over size of the sent updates."""
        return compression_ratio(self.weights * self.mini_batches, self.update_bytes)


def node_figures(status: Status) -> NodeFigures:
    """Read one status; accepts any subset of the keys (contract: docs of `p2psgd status --json`)."""
    trainer, updates, run, ring = (section(status, key) for key in ("trainer", "updates", "run", "ring"))
    state = printable(status.get("state", "starting"))
    finished = bool(trainer.get("finished")) and state in ("serving", "waiting for a trainer")
    told = whole(trainer, "samples") or number(trainer, "samples_per_s") or number(trainer, "epoch")
    return NodeFigures(
        node=printable(status.get("node", "?")),
        state=FINISHED if finished else state.split()[0],
        notes=_notes(state, finished, status, trainer),
        weights=whole(run, "weights"),
        mini_batches=whole(trainer, "mini_batches"),
        mini_batches_per_s=number(trainer, "mini_batches_per_s"),
        epoch=number(trainer, "epoch") if told else None,
        samples=whole(trainer, "samples"),
        samples_per_s=number(trainer, "samples_per_s") if told else None,
        loss=number(trainer, "loss"),
        test_accuracy=number(trainer, "test_accuracy"),
        updates_sent=whole(updates, "sent"),
        updates_applied=whole(updates, "applied"),
        indices_sent=whole(updates, "indices_sent"),
        update_bytes=whole(updates, "bytes"),
        ring_round=whole(ring, "round") if ring else None,
        dense=str(ring.get("payload", "")).startswith("dense"),
        peers=tuple(_peer(peer) for peer in status.get("peers") or ()),
    )


def total_compression_ratio(nodes: Sequence[NodeFigures]) -> float | None:
    """Return the compression ratio over all these nodes' mini-batches."""
    dense_weights = sum(node.weights * node.mini_batches for node in nodes)
    return compression_ratio(dense_weights, sum(node.update_bytes for node in nodes))


def total_bits_per_index(nodes: Sequence[NodeFigures]) -> float | None:
    """Return the bits per index over all these nodes' updates."""
    return bits_per_index(sum(node.update_bytes for node in nodes), sum(node.indices_sent for node in nodes))


def shared_notes(nodes: Sequence[NodeFigures]) -> list[str]:
    """Return every note as `who: what`; nodes that have the same one to say share a sentence."""
    speakers: dict[str, list[str]] = {}
    for node in nodes:
        for note in node.notes:
            speakers.setdefault(note, []).append(node.node)
    return [f"{formatting.listed(names)}: {note}" for note, names in speakers.items()]


def section(status: Status, key: str) -> Status:
    """Return a part of the status, empty where it is missing or null (as `run` is before a trainer came)."""
    value = status.get(key)
    return value if isinstance(value, Mapping) else {}


def number(part: Status, key: str) -> float | None:
    """Return a finite number; None for anything else, so that no view and no report ever shows NaN."""
    value = part.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def whole(part: Status, key: str) -> int:
    """Return a count; 0 where it is missing."""
    value = part.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _peer(peer: Status) -> PeerFigures:
    return PeerFigures(
        node=printable(peer.get("node") or peer.get("address") or "?"),
        id=printable(peer.get("id") or ""),
        address=printable(peer.get("address") or ""),
        state=printable(peer.get("state") or "?"),
        lag=None if peer.get("lag") is None else whole(peer, "lag"),
        since_s=number(peer, "since_s"),
        bytes_sent=whole(peer, "bytes_sent"),
        bytes_received=whole(peer, "bytes_received"),
        round_trip_ms=number(peer, "round_trip_ms"),
        error=printable(peer.get("error") or ""),
        through=printable(peer.get("through") or ""),
    )


def _notes(state: str, finished: bool, status: Status, trainer: Status) -> tuple[str, ...]:
    """Collect the plain sentences a view shows for this node, each once, in the order of their weight."""
    sentences: list[str] = []
    if state.startswith(LOST):
        return (state,)
    if not finished:
        sentences += [printable(part["waits"]) for part in (status, trainer) if part.get("waits")]
        crash = printable(trainer.get("crash") or "")
        if crash and not trainer.get("attached") and not any(crash in each for each in sentences):
            sentences.append(crash)
        if not sentences and state == "waiting for a trainer":
            sentences.append(state)
    alarms = [printable(alarm) for alarm in status.get("alarms") or ()]
    sentences += [alarm for alarm in alarms if not any(alarm in each for each in sentences)]
    return tuple(dict.fromkeys(sentences))
