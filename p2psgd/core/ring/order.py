"""The order of a ring: by node id, or such that no slow link is in it that need not be.

A round passes through all links at once, so it takes as long as the slowest of them: that one counts first,
then all together. Only the head chooses; the others are told. Finding the very best order is the travelling
salesman's problem; the nearest next node, improved a little where there are few, is good enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.ring import LinkRow

SEGMENT_BYTES: Final = 256 * 1024  # what a link sends at a time
UNKNOWN_US: Final = 10_000_000  # a link that nobody has measured is taken last
MEASURED_MAX: Final = 64  # members of a ring whose order is chosen: more would stall the loop, 0.2 s for 200
IMPROVED_MAX: Final = 16  # and of one that is improved: 330 changes are tried in a pass, some 2 ms
PASSES_MAX: Final = 8

Told = Mapping[Origin, Iterable[LinkRow]]  # by member, what it has measured
Cost = Callable[[Origin, Origin], float]


def is_chosen(members: int) -> bool:
    """A ring of so many goes by what was measured; three are a ring in any order."""
    return 4 <= members <= MEASURED_MAX


def choose_order(members: Iterable[Origin], told: Told | None = None) -> tuple[Origin, ...]:
    """Around the ring, the head first; by node id unless it is `told` what members have measured, or if they
    are very many.
    """
    by_id = sorted(members)
    if told is None or not is_chosen(len(by_id)):
        return tuple(by_id)
    cost = cost_of(told)
    order, left = by_id[:1], by_id[1:]
    while left:
        nearest = min(left, key=lambda each: (cost(order[-1], each), each))
        left.remove(nearest)
        order.append(nearest)
    return tuple(_improved(order, cost) if len(order) <= IMPROVED_MAX else order)


def cost_of(told: Told) -> Cost:
    """Microseconds that a segment takes from one member to another, by whichever of the two says more."""
    costs: dict[tuple[int, int], float] = {}
    for member, rows in told.items():
        for row in rows:
            cost = row.round_trip_us / 2
            if row.kib_per_s:
                cost += SEGMENT_BYTES / 1024 / row.kib_per_s * 1e6
            pair = min(member.node, row.node), max(member.node, row.node)
            costs[pair] = max(cost, costs.get(pair, 0.0))

    def cost_between(one: Origin, other: Origin) -> float:
        return costs.get((min(one.node, other.node), max(one.node, other.node)), UNKNOWN_US)

    return cost_between


def measure_ring(order: Sequence[Origin], cost: Cost) -> tuple[float, float]:
    """Its slowest link, and all of them together."""
    costs = [cost(one, other) for one, other in pairwise([*order, order[0]])]
    return max(costs), sum(costs)


def _improved(order: list[Origin], cost: Cost) -> list[Origin]:
    best = measure_ring(order, cost)
    for _ in range(PASSES_MAX):
        before = best
        for changed in _changes(order):
            length = measure_ring(changed, cost)
            if length < best:
                order, best = changed, length
        if best == before:
            break
    return order


def _changes(order: list[Origin]) -> Iterator[list[Origin]]:
    """Each stretch turned around, and each member but the head put elsewhere."""
    for start in range(1, len(order)):
        for end in range(start + 2, len(order) + 1):
            yield order[:start] + order[start:end][::-1] + order[end:]
        rest = order[:start] + order[start + 1 :]
        for place in range(1, len(order)):
            yield [*rest[:place], order[start], *rest[place:]]
