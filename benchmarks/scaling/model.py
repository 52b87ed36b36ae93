"""The model behind `python -m benchmarks.plan`: steps a second, bytes, and what limits a run.

More than 700 lines, since it is one prediction, whose formulas share their symbols, with its page.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2psgd.base import formatting
from p2psgd.base.errors import UsageError
from p2psgd.core.owners.ranges import owner_count
from p2psgd.core.owners.relay_trees import FAN_OUT
from p2psgd.core.ring.chunks import segment_numbers
from p2psgd.core.timing import FAILURE_TIMEOUT_S_MAX, FAILURE_TIMEOUT_S_MIN
from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire import codec
from p2psgd.wire.frames import CONTRIBUTION_HEADER_BYTES, PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.ring_messages import RING_CHUNK_BYTES, RING_UPDATE_BYTES

# ----------------------------------------------------------------------------
# What a run will do before it is run: steps a second, bytes, and what holds it up, from a few numbers.
#
# [TernGrad 2017] (appendix B) predicts throughput from one profiled node, as computing time plus
# communication time, of latency and size / bandwidth. This begins there and adds what that leaves out: how
# well gradients are coded, what the processors of a node have to do, and what overlaps. Pure arithmetic:
# nothing here reads, asks or measures. How far it is off is measured by benchmarks/scaling and told in
# docs/explanation/scaling.md.


# ----------------------------------------------------------------------------
# How many bytes travel: what an update takes coded, in its frame, and on a link with all headers of TCP.


SEGMENT_BYTES: Final = 1448  # of an Ethernet packet of 1,500 bytes, less IPv4, TCP and its timestamps
PACKET_BYTES: Final = 66  # those headers, and Ethernet's
FIELD_BYTES: Final = 105  # of a STATUS beside its tables (SPEC.md, section 5)
FRONTIER_ROW_BYTES = 64
ACKNOWLEDGED_UPDATES, ACKNOWLEDGED_BYTES = 64, 256 * 1024  # of a peer, and it is told by a STATUS (section 9)
STATUSES_PER_TIMEOUT: Final = 5
TICKS_TO_STATUS: Final = 5  # a daemon looks who is due so often until each is
FLOAT_BYTES: Final = 4
# In mode owners, by `python -m tests.sim.owners.crowd`, whose steps take 5 % more or less than the mean:
UPDATES_EACH: Final = 1.05  # of a publication, one for each magnitude
COVER_BYTES, COVER_NODE_BYTES = 9, 0.1  # of an update, and more for each node that is out of step
# Back-propagation gives the last layers' gradient after the forward pass, a third of computing, and the
# first ones' at its end: as if the net had three tensors, each given once its third of computing is done.
DENSE_TENSORS: Final = 3


def bits_per_index(density: float) -> float:
    """Return the bits per index of a large update, sign included, if all weights are equally likely in it.

    Gaps between indices are geometric then. The parameter k of Golomb and Rice costs k bits, one to end the
    quotient and the quotient's mean; each block of 512 has one byte of header and half a byte to fill up.
    Real updates take up to 6 % less: their density and signs are not the same everywhere.
    """
    absent = 1 - density
    best = min(k + 1 + (absent ** (1 << k)) / (1 - absent ** (1 << k)) for k in range(codec.RICE_MAX + 1))
    return best + 1 + 12 / codec.BLOCK_GAPS


def update_bytes(weights: int, indices: int) -> int:
    """An UPDATE frame of so many indices."""
    coded = math.ceil(indices * bits_per_index(indices / weights) / 8)
    dense = 1 + math.ceil(weights / 5)  # five weights to a byte, where that is shorter
    return PREFIX.size + UPDATE_HEADER_BYTES + min(coded, dense)


def ring_update_bytes(weights: int, indices: int) -> int:
    """Return the bytes of the same update as a RING_UPDATE."""
    return update_bytes(weights, indices) + RING_UPDATE_BYTES


def bytes_of_status(origins: int) -> int:
    """A STATUS frame while so many make updates: it has the rows that have changed since the one before."""
    return PREFIX.size + FIELD_BYTES + FRONTIER_ROW_BYTES * origins


def contribution_bytes(setting: Setting) -> int:
    """A CONTRIBUTION frame to one owner, in mode owners."""
    coded = math.ceil(setting.indices / setting.owners * bits_per_index(setting.density) / 8)
    return PREFIX.size + CONTRIBUTION_HEADER_BYTES + coded


def publication_bytes(setting: Setting) -> int:
    """Return the bytes of an owner's updates for as many contributions as there are members; about as many
    indices go out as one node contributes.
    """
    coded = math.ceil(setting.indices / setting.owners * bits_per_index(setting.density) / 8)
    cover = COVER_BYTES + COVER_NODE_BYTES * setting.nodes
    return coded + math.ceil(UPDATES_EACH * (PREFIX.size + UPDATE_HEADER_BYTES + cover))


def statuses_per_s(failure_timeout_s: float) -> float:
    """To each peer, as sign of life."""
    return STATUSES_PER_TIMEOUT / failure_timeout_s


def statuses_per_update(frame_bytes: int) -> float:
    """To a peer for each of its updates, as acknowledgement."""
    return max(1 / ACKNOWLEDGED_UPDATES, frame_bytes / ACKNOWLEDGED_BYTES)


def on_link(frame_bytes: int) -> float:
    """Return a frame's bytes on the link: with the headers of its packets and, since as much comes back,
    those of one acknowledgement for every two packets of the other way.
    """
    packets = math.ceil(frame_bytes / SEGMENT_BYTES)
    return frame_bytes + (packets + math.ceil(packets / 2)) * PACKET_BYTES


def dense_bytes(weights: int, nodes: int) -> float:
    """Return a node's bytes sent for a round of whole float32 gradients ([Baidu ring 2017]), framed."""
    chunk_header = PREFIX.size + RING_CHUNK_BYTES
    return 2 * (nodes - 1) / nodes * weights * FLOAT_BYTES + dense_chunks(weights, nodes) * chunk_header


def dense_chunks(weights: int, nodes: int) -> int:
    """In how many frames: each chunk of a tensor is cut so that sending and receiving overlap."""
    tensor = weights // DENSE_TENSORS
    chunk = tensor / nodes
    return DENSE_TENSORS * 2 * (nodes - 1) * math.ceil(chunk / segment_numbers(tensor, nodes))


def stream_on_link(byte_count: float) -> float:
    """Return a bulk transfer's bytes on the link: one acknowledgement then answers many packets."""
    return byte_count * (1 + PACKET_BYTES / SEGMENT_BYTES)


# ----------------------------------------------------------------------------
# What a prediction is made from.


NODES_MAX: Final = 1024  # members of a view (SPEC.md, section 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run, and the machines it is to run on; UsageError for one that cannot be.

    `weights`: P. `link_bit_per_s`: what a node's link carries each way. `computing_s`: what a trainer takes
    for the gradient of one mini-batch of `samples`, on one node alone. `density`: the part of the weights
    that an update changes. `latency_s`: one way. `cores`: processors that a node has for p2psgd's own work
    beside computing; None: as many as that uses (two).
    """

    weights: int
    nodes: int
    link_bit_per_s: float
    computing_s: float
    density: float
    samples: int = 256
    latency_s: float = 250e-6
    failure_timeout_s: float = 5.0
    cores: float | None = None

    def __post_init__(self) -> None:
        _check("weights", self.weights, 1, codec.WEIGHTS_MAX)
        _check("nodes", self.nodes, 1, NODES_MAX)
        _check("samples in a mini-batch", self.samples, 1, 2**31)
        _check(
            "seconds of failure timeout", self.failure_timeout_s, FAILURE_TIMEOUT_S_MIN, FAILURE_TIMEOUT_S_MAX
        )
        for what, value in (("bandwidth", self.link_bit_per_s), ("time for a mini-batch", self.computing_s)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"a {what} of {value:g} predicts nothing: give one above 0")
        if not 0 < self.density <= 1:
            raise UsageError(
                f"a density of {self.density:g} is no part of the weights: give one above 0 and at most 1, "
                "such as 1/850; `p2psgd status --compression` shows that of a running node"
            )
        most = send_indices_max(self.weights)
        if self.indices > most:
            raise UsageError(
                f"{self.density:g} of {self.weights:,} weights are {self.indices:,} indices, and a step "
                f"sends at most {most:,}: give a density of at most 1/{math.ceil(self.weights / most)}"
            )

    @property
    def link_bytes_per_s(self) -> float:
        """Each way."""
        return self.link_bit_per_s / 8

    @property
    def owners(self) -> int:
        """Return how many nodes own weights in mode owners."""
        return owner_count(self.nodes, self.weights)

    @property
    def indices(self) -> int:
        """Return the indices of one step; at least one."""
        return max(1, round(self.weights * self.density))


def _check(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{value:,} {what} cannot be: give {least:,} to {most:,}")


# ----------------------------------------------------------------------------
# Quantities as people write them: 14.6M weights, or 14,600,000, 1Gbit, 150ms, 1/850. ValueError says what
# would do.


_NUMBER: Final = re.compile(r"\s*((?:[1-9]\d{0,2}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)\s*([a-zA-Z%/]*)\s*")
_COUNT: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_BITS: Final = {
    prefix + unit: scale
    for prefix, scale in {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}.items()
    for unit in ("bit", "bits", "bit/s", "bits/s", "bps", "b", "b/s")
}
_TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_count(text: str) -> int:
    """A whole number: `14600000`, `14,600,000`, `14.6M`, `800k`, `1.5G`."""
    value = _scaled(text, _COUNT, "a number such as 800k or 14.6M")
    if value != round(value):
        raise ValueError(f"{text!r} is no whole number")
    return round(value)


def parse_bandwidth(text: str) -> float:
    """Bits per second: `1Gbit`, `70Mbit/s`, `10Gbps`, `1Gb`; a large B is a byte."""
    if re.search(r"byte|B(?!it|IT)", text):
        raise ValueError(f"{text!r} is in bytes: give bits per second, such as 100Mbit or 1Gbit")
    return _scaled(text, _BITS, "bits per second, such as 100Mbit or 1Gbit")


def parse_time(text: str) -> float:
    """Seconds: `150ms`, `2s`, `80us`."""
    return _scaled(text, _TIMES, "a time with its unit, such as 150ms or 1.2s")


def parse_density(text: str) -> float:
    """A part of the weights: `1/850`, `0.12%`, `0.0012`."""
    over, slash, under = text.partition("/")
    if slash:
        divisor = _scaled(under, {"": 1.0}, "a part such as 1/850")
        if not divisor:
            raise ValueError(f"{text!r} divides by nothing: give a part such as 1/850")
        return _scaled(over, {"": 1.0}, "a part such as 1/850") / divisor
    return _scaled(text, {"": 1.0, "%": 0.01}, "a part of the weights such as 1/850, 0.12% or 0.0012")


def _scaled(text: str, units: Mapping[str, float], wanted: str) -> float:
    found = _NUMBER.fullmatch(text)
    scale = None if found is None else units.get(found[2].lower())
    if found is None or scale is None:
        raise ValueError(f"{text!r} is not {wanted}")
    value = float(re.sub("[,_]", "", found[1])) * scale
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]!r}... is beyond all numbers: give {wanted}")
    nearest = round(value)  # 14.6 x 1e6 is 14.6 million, whatever floats make of it
    return float(nearest) if math.isclose(value, nearest, rel_tol=1e-12) else value


# ----------------------------------------------------------------------------
# What p2psgd's own work costs a processor.
#
# The figures are of one thread of a Xeon of 2024 (AVX2), two of whose processors were shared with other
# work. Most are from `python -m benchmarks --large residual step apply daemon`: many in a row, caches warm.
# That is right for what binds, since work that has piled up is done in one go. A daemon that is woken for
# one update after some milliseconds finds its caches cold and takes up to seven times as long for it, but
# then it has the time. Where nothing can pile up the cold figure stands: `send_s` of a trainer after
# computing, from a paced node without peers; `pass_on_s` in a ring and `chunk_s`, from the CPU seconds, not
# the rates, of paced rings of 4 to 16 nodes (`python -m benchmarks.scaling`); `move_weight_s` is what a
# dense round of docs/how-to/ring.md takes beyond its bytes. Other processors are off by a factor of their
# own: where a prediction says that a processor binds, measure there.


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one processor."""

    # of a trainer
    pass_weight_s: float = 0.75e-9  # residual pass, for each weight (float32, on the host)
    send_s: float = 1e-3  # one send, whatever its size
    send_index_s: float = 30e-9  # finding, coding and applying an index of its own
    receive_s: float = 40e-6  # one update of a peer, whatever its size
    receive_index_s: float = 9e-9
    # of a daemon
    own_s: float = 150e-6  # its trainer's update: from the outbox to the replica and the log
    own_index_s: float = 14e-9
    feed_s: float = 20e-6  # one more peer to send an update to
    feed_byte_s: float = 0.7e-9
    take_s: float = 40e-6  # a peer's update: from the socket to the replica, the log and the inbox
    take_index_s: float = 11e-9
    pass_on_s: float = 180e-6  # beside that, to be woken for it and send it on, in a ring
    status_s: float = 50e-6  # a STATUS from a peer, and to it
    status_row_s: float = 3e-6  # for each origin in it
    status_pair_s: float = 0.28e-6  # to make one: for each origin and each member that may have confirmed it
    idle_per_s: float = 2e-3  # timers and watching itself, in each second
    # of a dense ring
    sum_byte_s: float = 2e-9  # a byte of a share on its way: received, checked, added, sent
    chunk_s: float = 100e-6  # a RING_CHUNK, whatever its size
    move_weight_s: float = 2e-9  # the new weights of a round, in daemon and trainer


MEASURED: Final = Costs()


# ----------------------------------------------------------------------------
# What one step asks of a node's trainer, daemon and link, for each way of training.


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of one node. `send_s` and `receive_s`: a trainer's, beside computing. `daemon_s`: a daemon's.
    `hops`: how many times in a row something waits for the link's latency. `frame_bytes`: what it sends;
    `link_bytes`: what that takes of the link each way, packets' headers included. Where nodes differ these
    are means, and `most_link_bytes` what the busiest node receives, which `daemon_s` is of too.
    `*_per_s` come at a pace of their own, however long a step takes.
    """

    send_s: float
    receive_s: float
    daemon_s: float
    hops: int
    frame_bytes: float
    link_bytes: float
    daemon_per_s: float
    link_bytes_per_s: float
    status_bytes_per_s: float
    most_link_bytes: float = 0.0


def trainer_alone_s(setting: Setting, costs: Costs) -> float:
    """Return the seconds that a step of a node without peers takes beside computing."""
    return costs.pass_weight_s * setting.weights + costs.send_s + costs.send_index_s * setting.indices


def receive_s(setting: Setting, costs: Costs) -> float:
    """Return the seconds that a trainer takes to apply one update of each peer."""
    return (setting.nodes - 1) * (costs.receive_s + costs.receive_index_s * setting.indices)


def take_s(setting: Setting, costs: Costs) -> float:
    """Return the seconds that a daemon takes for one update of a peer."""
    return costs.take_s + costs.take_index_s * setting.indices


def own_s(setting: Setting, costs: Costs) -> float:
    """Return the seconds that a daemon takes for its trainer's update, before sending it."""
    return costs.own_s + costs.own_index_s * setting.indices


def async_load(setting: Setting, costs: Costs) -> Load:
    """Every node sends its update to all others, and receives theirs."""
    peers = setting.nodes - 1
    frame = update_bytes(setting.weights, setting.indices)
    acknowledged = statuses_per_update(frame)  # STATUS for each update
    feed_s = costs.feed_s + costs.feed_byte_s * frame
    nodes = setting.nodes
    told_s = acknowledged * (_hear_status_s(nodes, costs) + _make_status_s(nodes, nodes, costs))
    status_bytes = bytes_of_status(setting.nodes)
    return Load(
        send_s=trainer_alone_s(setting, costs),
        receive_s=receive_s(setting, costs),
        daemon_s=own_s(setting, costs) + peers * (feed_s + take_s(setting, costs) + told_s),
        hops=0,
        frame_bytes=peers * (frame + acknowledged * status_bytes),
        link_bytes=peers * (on_link(frame) + acknowledged * on_link(status_bytes)),
        **_background(setting, costs, rows=setting.nodes, status_bytes=bytes_of_status(setting.nodes)),
    )


def owners_load(setting: Setting, costs: Costs) -> Load:
    """Every node contributes to each owner, and passes on its part of what the owners publish. Owners are the
    busiest: all contributions to their range come to them.
    """
    peers, owners = setting.nodes - 1, setting.owners
    if not peers:
        return async_load(setting, costs)
    each = owners * peers / setting.nodes  # of contributions, and of publications, that a node sends
    updates = each * UPDATES_EACH
    given, published = contribution_bytes(setting), publication_bytes(setting)
    frame = published / UPDATES_EACH
    small = replace(setting, weights=max(1, setting.weights // owners))
    take_each_s, frames_s = take_s(small, costs), costs.feed_s + costs.feed_byte_s * frame
    return Load(
        send_s=trainer_alone_s(setting, costs),
        # what is covered is taken off again, which is as long
        receive_s=(updates + each) * costs.receive_s + 2 * costs.receive_index_s * setting.indices,
        daemon_s=own_s(setting, costs)
        + each * frames_s
        + updates * (frames_s + take_each_s)
        + peers * take_each_s,
        hops=0,
        frame_bytes=each * (given + published),
        link_bytes=each * on_link(given) + updates * on_link(math.ceil(frame)),
        most_link_bytes=peers * on_link(given) + updates * on_link(math.ceil(frame)),
        **_background(setting, costs, rows=owners, status_bytes=bytes_of_status(owners)),
    )


def sparse_ring_load(setting: Setting, costs: Costs) -> Load:
    """Every node's update is passed on by all but the one that it comes from and the last."""
    peers = setting.nodes - 1
    frame = ring_update_bytes(setting.weights, setting.indices)
    return Load(
        send_s=trainer_alone_s(setting, costs),
        receive_s=receive_s(setting, costs),
        daemon_s=own_s(setting, costs) + peers * (take_s(setting, costs) + costs.pass_on_s),
        hops=peers,
        frame_bytes=peers * frame,
        link_bytes=peers * on_link(frame),
        **_background(setting, costs, rows=setting.nodes, status_bytes=bytes_of_status(setting.nodes)),
    )


def dense_ring_load(setting: Setting, costs: Costs) -> Load:
    """Whole gradients, added up on their way once around and handed out on the second."""
    size = (setting.weights, setting.nodes)
    byte_count = dense_bytes(*size)
    return Load(
        send_s=costs.send_s,
        receive_s=costs.move_weight_s * setting.weights,
        daemon_s=costs.sum_byte_s * byte_count + costs.chunk_s * dense_chunks(*size),
        hops=2 * (setting.nodes - 1),
        frame_bytes=byte_count,
        link_bytes=stream_on_link(byte_count),
        **_background(setting, costs, rows=setting.nodes, status_bytes=bytes_of_status(setting.nodes)),
    )


def _background(setting: Setting, costs: Costs, *, rows: int, status_bytes: int) -> dict[str, float]:
    """Return the cost of STATUS with `rows` rows and `status_bytes` bytes, to and from each peer. A node
    makes one for all peers that are due one in the same tick.
    """
    peers, each_per_s = setting.nodes - 1, statuses_per_s(setting.failure_timeout_s)
    rate, made = peers * each_per_s, min(peers, TICKS_TO_STATUS) * each_per_s
    return {
        "daemon_per_s": costs.idle_per_s
        + rate * _hear_status_s(rows, costs)
        + made * _make_status_s(rows, setting.nodes, costs),
        "link_bytes_per_s": rate * on_link(status_bytes),
        "status_bytes_per_s": rate * status_bytes,
    }


def _hear_status_s(rows: int, costs: Costs) -> float:
    return costs.status_s + costs.status_row_s * rows


def _make_status_s(rows: int, nodes: int, costs: Costs) -> float:
    return costs.status_pair_s * rows * nodes


# ----------------------------------------------------------------------------
# From what a step asks of each part of a node to how long it takes, and to what that is due.
#
# Asynchronous, everything overlaps: a step takes as long as the part that is busy longest, be it the trainer
# (computing, residual pass, applying), the daemon, the link or all processors together. In a round one thing
# follows the other: computing, sending, the ring, applying; only in a dense ring the first tensors go around
# while the rest is computed.


class Way(enum.Enum):
    """Ways in which a run trains."""

    ASYNC = "async"
    OWNERS = "owners"
    ROUNDS = "owners, rounds"
    SPARSE_RING = "ring, sparse"
    DENSE_RING = "ring, dense"


class Part(enum.Enum):
    """Parts of a step, one of which is its bottleneck."""

    COMPUTING = "computing"
    TRAINER = "the trainer's own work"
    DAEMON = "the daemon"
    NETWORK = "the network"
    PROCESSORS = "all processors together"


COMMUNICATION: Final = (Part.DAEMON, Part.NETWORK, Part.PROCESSORS)

Parts = dict[Part, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction for a run with all its nodes; seconds are those of one step of one node.

    `parts`: how long each is busy for a step (async: at the same time), or what it adds to it (rings: one
    after the other). `bottleneck`: the largest of them. `alone_s`: a step of one node without peers,
    asynchronous, as there is no ring of one.
    `sent_bytes`: frames that a node sends in a step, STATUS included; `link_share`: how much of its link that
    fills, packets' headers included. `binds_from`: the least number of nodes at which communication is the
    bottleneck, and which part of it; None if it is not up to 1,024.
    """

    way: Way
    nodes: int
    samples: int
    step_s: float
    alone_s: float
    parts: Parts
    sent_bytes: float
    link_share: float
    binds_from: tuple[int, Part] | None

    @property
    def bottleneck(self) -> Part:
        """Return the part to look at first."""
        return _largest(self.parts)

    @property
    def steps_per_s(self) -> float:
        """Return the steps per second of all nodes together."""
        return self.nodes / self.step_s

    @property
    def samples_per_s(self) -> float:
        """Return the samples per second of all nodes together."""
        return self.samples * self.steps_per_s

    @property
    def speed_up(self) -> float:
        """Against one node without peers."""
        return self.nodes * self.alone_s / self.step_s


def predict(way: Way, setting: Setting, costs: Costs = MEASURED) -> Prediction:
    """UsageError where the nodes' signs of life alone are too much for a link or a daemon."""
    load_of, parts_of = _WAYS[way]
    load = load_of(setting, costs)
    parts = parts_of(setting, load)
    step_s = _step_s(way, parts)
    if not math.isfinite(step_s):
        part = _largest(parts)
        advice = "more bandwidth" if part is Part.NETWORK else "fewer nodes"
        raise UsageError(
            f"with {setting.nodes:,} nodes {part.value} has no room for updates beside their signs of life: "
            f"give {advice}, or a longer failure timeout"
        )
    alone = replace(setting, nodes=1, cores=None)
    return Prediction(
        way=way,
        nodes=setting.nodes,
        samples=setting.samples,
        step_s=step_s,
        alone_s=max(_async_parts(alone, async_load(alone, costs)).values()),
        parts=parts,
        sent_bytes=load.frame_bytes + load.status_bytes_per_s * step_s,
        link_share=(load.link_bytes / step_s + load.link_bytes_per_s) / setting.link_bytes_per_s,
        binds_from=_binds_from(way, setting, costs),
    )


def _binds_from(way: Way, setting: Setting, costs: Costs) -> tuple[int, Part] | None:
    load_of, parts_of = _WAYS[way]
    for nodes in range(2, NODES_MAX + 1):
        more = replace(setting, nodes=nodes)
        bottleneck = _largest(parts_of(more, load_of(more, costs)))
        if bottleneck in COMMUNICATION:
            return nodes, bottleneck
    return None


def _step_s(way: Way, parts: Parts) -> float:
    return max(parts.values()) if way in (Way.ASYNC, Way.OWNERS) else sum(parts.values())


def _largest(parts: Parts) -> Part:
    return max(parts, key=lambda part: parts[part])


def _async_parts(setting: Setting, load: Load) -> Parts:
    own_s = load.send_s + load.receive_s
    main = Part.COMPUTING if setting.computing_s >= own_s else Part.TRAINER
    parts = {
        main: setting.computing_s + own_s,
        Part.DAEMON: _beside(load.daemon_s, load.daemon_per_s, 1.0),
        Part.NETWORK: _beside(
            max(load.link_bytes, load.most_link_bytes), load.link_bytes_per_s, setting.link_bytes_per_s
        ),
    }
    if setting.cores is not None:
        parts[Part.PROCESSORS] = _beside(load.daemon_s + own_s, load.daemon_per_s, setting.cores)
    return parts


def _sparse_ring_parts(setting: Setting, load: Load) -> Parts:
    network_s = _beside(load.link_bytes, load.link_bytes_per_s, setting.link_bytes_per_s)
    return {
        Part.COMPUTING: setting.computing_s,
        Part.TRAINER: _together(load.send_s + load.receive_s, setting),
        Part.DAEMON: _together(_beside(load.daemon_s, load.daemon_per_s, 1.0), setting),
        Part.NETWORK: network_s + load.hops * setting.latency_s,
    }


def _rounds_parts(setting: Setting, load: Load) -> Parts:
    """As a sparse ring, but for the ways through the network: to the owners, and along their trees."""
    most = replace(load, link_bytes=max(load.link_bytes, load.most_link_bytes))
    hops = 1 + math.ceil(math.log(max(2, setting.nodes), FAN_OUT))
    return _sparse_ring_parts(setting, replace(most, hops=hops))


def _dense_ring_parts(setting: Setting, load: Load) -> Parts:
    network_s = _beside(load.link_bytes, load.link_bytes_per_s, setting.link_bytes_per_s)
    network_s += load.hops * setting.latency_s
    daemon_s = _together(_beside(load.daemon_s, load.daemon_per_s, 1.0), setting)
    around_s = max(network_s, daemon_s)
    overlapping_s = min(around_s, setting.computing_s) * (1 - 1 / DENSE_TENSORS)
    return {
        Part.COMPUTING: setting.computing_s,
        Part.TRAINER: _together(load.send_s + load.receive_s, setting),
        Part.NETWORK if network_s >= daemon_s else Part.DAEMON: around_s - overlapping_s,
    }


def _beside(work: float, work_per_s: float, room_per_s: float) -> float:
    """Seconds for so much work where some more comes all the time."""
    left_per_s = room_per_s - work_per_s
    if left_per_s <= 0:
        return math.inf if work else 0.0
    return work / left_per_s


def _together(busy_s: float, setting: Setting) -> float:
    """Seconds for what all nodes of a ring do at the same moment, where a node has less than a processor."""
    return busy_s if setting.cores is None else busy_s / min(1.0, setting.cores)


_WAYS: Final[dict[Way, tuple[Callable[[Setting, Costs], Load], Callable[[Setting, Load], Parts]]]] = {
    Way.ASYNC: (async_load, _async_parts),
    Way.OWNERS: (owners_load, _async_parts),
    Way.ROUNDS: (owners_load, _rounds_parts),
    Way.SPARSE_RING: (sparse_ring_load, _sparse_ring_parts),
    Way.DENSE_RING: (dense_ring_load, _dense_ring_parts),
}


# ----------------------------------------------------------------------------
# Predictions as a table for people and as JSON for machines.


NOTES: Final = (
    "Communication binds from: so many nodes make it the bottleneck, not computing.",
    "async, owners: all overlaps, and the step is its busiest part; in rounds they",
    "add up. In mode owners the busiest node counts, and what a node sends is a mean.",
    "How far such predictions were off: docs/explanation/scaling.md.",
)


def render(setting: Setting, predictions: Sequence[Prediction]) -> RenderableType:
    """A column for each prediction; fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for each in predictions:
        table.add_column(each.way.value.replace(", ", ",\n"), justify="right", vertical="bottom")
    for name, words in ROWS:
        table.add_row(name, *(words(each) for each in predictions))
    for part in Part:
        busy = [each.parts.get(part) for each in predictions]
        if any(busy):
            table.add_row(f"  {part.value}", *(_milliseconds(each) for each in busy))
    return Group(
        *(Text(line) for line in heading(setting)),
        Text(),
        table,
        Text(),
        *(Text(note, "dim") for note in NOTES),
    )


def heading(setting: Setting) -> list[str]:
    """Return the heading: the question, and the size of an update."""
    density = setting.indices / setting.weights
    frame = update_bytes(setting.weights, setting.indices)
    return [
        f"{setting.weights:,} weights on {formatting.counted(setting.nodes, 'node')}, links of "
        f"{setting.link_bit_per_s / 1e6:,.4g} Mbit/s, {_milliseconds(setting.computing_s)} to compute "
        f"a mini-batch of {setting.samples:,}",
        f"an update: {setting.indices:,} indices (1 of {1 / density:,.0f}), "
        f"{8 * frame / setting.indices:.1f} bits each with all headers, {formatting.size(frame)}; "
        f"a whole gradient: {formatting.size(FLOAT_BYTES * setting.weights)}",
    ]


def describe(setting: Setting, prediction: Prediction) -> dict[str, Any]:
    """JSON-ready; units in the names."""
    return {
        "way": prediction.way.value,
        "nodes": prediction.nodes,
        "step_s": prediction.step_s,
        "steps_per_s": prediction.steps_per_s,
        "samples_per_s": prediction.samples_per_s,
        "speed_up": prediction.speed_up,
        "sent_bytes_per_step": prediction.sent_bytes,
        "sent_bytes_per_s": prediction.sent_bytes / prediction.step_s,
        "link_share": prediction.link_share,
        "bottleneck": prediction.bottleneck.value,
        "parts_s": {part.value: busy_s for part, busy_s in prediction.parts.items()},
        "communication_binds_from_nodes": prediction.binds_from and prediction.binds_from[0],
        "communication_binds_by": prediction.binds_from and prediction.binds_from[1].value,
        "update_indices": setting.indices,
        "update_bytes": update_bytes(setting.weights, setting.indices),
    }


def _milliseconds(seconds: float | None) -> str:
    return formatting.milliseconds(None if seconds is None else 1e3 * seconds)


def _shown_binds_from(prediction: Prediction) -> str:
    found = prediction.binds_from
    return f"over {NODES_MAX:,}" if found is None else formatting.counted(found[0], "node")


def _binds_by(prediction: Prediction) -> str:
    found = prediction.binds_from
    return formatting.UNKNOWN if found is None else found[1].value


ROWS: Final[tuple[tuple[str, Callable[[Prediction], str]], ...]] = (
    ("samples/s", lambda each: formatting.grouped(each.samples_per_s)),
    ("mini-batches/s", lambda each: formatting.decimals(each.steps_per_s, 1)),
    ("times one node", lambda each: f"{each.speed_up:.1f} of {each.nodes}"),
    ("a node sends, a step", lambda each: formatting.size(each.sent_bytes)),
    ("a node sends, a second", lambda each: formatting.size(each.sent_bytes / each.step_s)),
    ("of its link", lambda each: f"{100 * each.link_share:.1f} %"),
    ("bottleneck", lambda each: each.bottleneck.value),
    ("communication binds from", _shown_binds_from),
    ("  there it is", _binds_by),
    ("step", lambda each: _milliseconds(each.step_s)),
)
