"""From what a step asks of each part of a node to how long it takes, and to what that is due.

Asynchronous, everything overlaps: a step takes as long as the part that is busy longest, be it the trainer
(computing, residual pass, applying), the daemon, the link or all processors together. In a round one thing
follows the other: computing, sending, the ring, applying; only in a dense ring the first tensors go around
while the rest is computed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from p2psgd.errors import UsageError
from p2psgd.planning import traffic
from p2psgd.planning.costs import MEASURED, Costs
from p2psgd.planning.load import Load, async_load, dense_ring_load, sparse_ring_load
from p2psgd.planning.setting import NODES_MAX, Setting
from p2psgd.planning.traffic import DENSE_TENSORS


class Way(enum.Enum):
    """How a run trains."""

    ASYNC = "async"
    SPARSE_RING = "ring, sparse"
    DENSE_RING = "ring, dense"


class Part(enum.Enum):
    """What a step may be due to."""

    COMPUTING = "computing"
    TRAINER = "the trainer's own work"
    DAEMON = "the daemon"
    NETWORK = "the network"
    PROCESSORS = "all processors together"


COMMUNICATION: Final = (Part.DAEMON, Part.NETWORK, Part.PROCESSORS)

Parts = dict[Part, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of a run with all its nodes; seconds are those of one step of one node.

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
        """What to look at first."""
        return _largest(self.parts)

    @property
    def steps_per_s(self) -> float:
        """Of all nodes together."""
        return self.nodes / self.step_s

    @property
    def samples_per_s(self) -> float:
        """The same in samples."""
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
            f"give {advice}, or a longer patience"
        )
    alone = replace(setting, nodes=1, cores=None)
    background = (setting.nodes - 1) * traffic.statuses_per_s(setting.patience_s) * step_s
    return Prediction(
        way=way,
        nodes=setting.nodes,
        samples=setting.samples,
        step_s=step_s,
        alone_s=max(_async_parts(alone, async_load(alone, costs)).values()),
        parts=parts,
        sent_bytes=load.frame_bytes + background * traffic.status_bytes(setting.nodes),
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
    return max(parts.values()) if way is Way.ASYNC else sum(parts.values())


def _largest(parts: Parts) -> Part:
    return max(parts, key=lambda part: parts[part])


def _async_parts(setting: Setting, load: Load) -> Parts:
    own_s = load.send_s + load.receive_s
    main = Part.COMPUTING if setting.computing_s >= own_s else Part.TRAINER
    parts = {
        main: setting.computing_s + own_s,
        Part.DAEMON: _beside(load.daemon_s, load.daemon_per_s, 1.0),
        Part.NETWORK: _beside(load.link_bytes, load.link_bytes_per_s, setting.link_bytes_per_s),
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
    Way.SPARSE_RING: (sparse_ring_load, _sparse_ring_parts),
    Way.DENSE_RING: (dense_ring_load, _dense_ring_parts),
}
