"""What one step asks of a node's trainer, daemon and link, for each way of training."""

from __future__ import annotations

from dataclasses import dataclass

from p2psgd.planning import traffic
from p2psgd.planning.costs import Costs
from p2psgd.planning.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Of one node. `send_s` and `receive_s`: a trainer's, beside computing. `daemon_s`: a daemon's.
    `hops`: how many times in a row something waits for the link's latency. `frame_bytes`: what it sends;
    `link_bytes`: what that takes of the link each way, packets' headers included.
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


def trainer_alone_s(setting: Setting, costs: Costs) -> float:
    """What a step of a node without peers takes beside computing."""
    return costs.pass_weight_s * setting.weights + costs.send_s + costs.send_index_s * setting.indices


def receive_s(setting: Setting, costs: Costs) -> float:
    """What a trainer takes to apply one update of each peer."""
    return (setting.nodes - 1) * (costs.receive_s + costs.receive_index_s * setting.indices)


def take_s(setting: Setting, costs: Costs) -> float:
    """What a daemon takes to take in one update of a peer."""
    return costs.take_s + costs.take_index_s * setting.indices


def own_s(setting: Setting, costs: Costs) -> float:
    """What a daemon takes for its trainer's update, before it is sent."""
    return costs.own_s + costs.own_index_s * setting.indices


def async_load(setting: Setting, costs: Costs) -> Load:
    """Every node sends its update to all others, and receives theirs."""
    peers = setting.nodes - 1
    frame = traffic.update_bytes(setting.weights, setting.indices)
    acknowledged = traffic.statuses_per_update(frame)  # STATUS for each update
    feed_s = costs.feed_s + costs.feed_byte_s * frame
    told_s = acknowledged * (_hear_status_s(setting, costs) + _make_status_s(setting, costs))
    status_bytes = traffic.status_bytes(setting.nodes)
    return Load(
        send_s=trainer_alone_s(setting, costs),
        receive_s=receive_s(setting, costs),
        daemon_s=own_s(setting, costs) + peers * (feed_s + take_s(setting, costs) + told_s),
        hops=0,
        frame_bytes=peers * (frame + acknowledged * status_bytes),
        link_bytes=peers * (traffic.on_link(frame) + acknowledged * traffic.on_link(status_bytes)),
        **_background(setting, costs),
    )


def sparse_ring_load(setting: Setting, costs: Costs) -> Load:
    """Every node's update is passed on by all but the one that it comes from and the last."""
    peers = setting.nodes - 1
    frame = traffic.ring_update_bytes(setting.weights, setting.indices)
    return Load(
        send_s=trainer_alone_s(setting, costs),
        receive_s=receive_s(setting, costs),
        daemon_s=own_s(setting, costs) + peers * (take_s(setting, costs) + costs.pass_on_s),
        hops=peers,
        frame_bytes=peers * frame,
        link_bytes=peers * traffic.on_link(frame),
        **_background(setting, costs),
    )


def dense_ring_load(setting: Setting, costs: Costs) -> Load:
    """Whole gradients, added up on their way once around and handed out on the second."""
    size = (setting.weights, setting.nodes)
    byte_count = traffic.dense_bytes(*size)
    return Load(
        send_s=costs.send_s,
        receive_s=costs.move_weight_s * setting.weights,
        daemon_s=costs.sum_byte_s * byte_count + costs.chunk_s * traffic.dense_chunks(*size),
        hops=2 * (setting.nodes - 1),
        frame_bytes=byte_count,
        link_bytes=traffic.stream_on_link(byte_count),
        **_background(setting, costs),
    )


def _background(setting: Setting, costs: Costs) -> dict[str, float]:
    """STATUS, to and from each peer. One is made for all to whom it is due in the same tick."""
    peers, each_per_s = setting.nodes - 1, traffic.statuses_per_s(setting.patience_s)
    rate, made = peers * each_per_s, min(peers, traffic.TICKS_TO_STATUS) * each_per_s
    return {
        "daemon_per_s": costs.idle_per_s
        + rate * _hear_status_s(setting, costs)
        + made * _make_status_s(setting, costs),
        "link_bytes_per_s": rate * traffic.on_link(traffic.status_bytes(setting.nodes)),
    }


def _hear_status_s(setting: Setting, costs: Costs) -> float:
    return costs.status_s + costs.status_row_s * setting.nodes


def _make_status_s(setting: Setting, costs: Costs) -> float:
    return costs.status_pair_s * setting.nodes**2
