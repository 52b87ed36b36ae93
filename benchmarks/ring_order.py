"""A dense ring in the order of node ids, and one in an order that its nodes have measured, on hosts of which
some pairs are joined by slow links only: those that are neighbours by node id.

Both rings run in the same run and sum the same, round by round in turns. The limit is what each node must
send to its neighbour, 2 (N - 1) / N of the changes, at the rate of the slowest link in the ring.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks import Figure
from benchmarks.ring.contenders import p2psgd_ring
from benchmarks.ring.hosts import BURST, Host, can_shape, loopback
from tests.daemons import Daemon
from tests.lan import Lan

HOSTS: Final = 4
SLOW: Final = ((0, 1), (2, 3))  # pairs of hosts
FAST_MBIT, SLOW_MBIT = 200, 20


def run(*, large: bool) -> list[Figure]:
    """Large: 1 M float32 on links of 200 Mbit/s, two pairs at 20."""
    count, rounds, patience_s = (1_000_000, 7, 10.0) if large else (50_000, 2, 3.0)
    needed = 4 * count * 2 * (HOSTS - 1) / HOSTS
    seconds: dict[str, list[float]] = {"id": [], "measured": []}
    orders = {}
    results = set()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(slow_pairs()) if can_shape() else stack.enter_context(loopback(HOSTS))
        rings = {}
        for order in seconds:  # one after the other: a ring that begins would be measured by the other
            ring = p2psgd_ring(hosts, count, directory / order, order=order, patience_s=patience_s)
            rings[order] = stack.enter_context(ring)
        for number in range(rounds + 1):  # the first warms up
            for order, (contender, _) in rings.items():
                took_s, result = contender.round("round", "together", "0")
                results.add(result)
                if number:
                    seconds[order].append(took_s)
        for order, (_, daemons) in rings.items():
            told = [ring_of(daemon) for daemon in daemons]
            orders[order] = told[0]["order"]
            assert all((each["order"], each["order_by"]) == (orders[order], order) for each in told), told
    assert len(results) == 1, f"different sums: {results}"
    figures = []
    for order, each in seconds.items():
        rate = rate_mbit(orders[order]) if can_shape() else 0
        limit = f"limit {8e-3 * needed / rate:.0f} ms at {rate} Mbit/s; " if rate else ""
        note = f"{limit}{len(each)} rounds, {1e3 * min(each):.0f} to {1e3 * max(each):.0f}; "
        note += " > ".join(orders[order])
        figures.append(Figure(f"order {order}: a dense round", 1e3 * statistics.median(each), "ms", note))
    ratio = statistics.median(seconds["id"]) / statistics.median(seconds["measured"])
    return [*figures, Figure("id to measured", ratio, "times", f"result {results.pop()}")]


@contextlib.contextmanager
def slow_pairs() -> Iterator[list[Host]]:
    """As many hosts as there are, in the order of node ids half of the neighbours far apart."""
    with Lan(HOSTS, rate=f"{FAST_MBIT}mbit", burst=BURST) as lan:
        for one, other in SLOW:
            lan.set_pair(one, other, f"{SLOW_MBIT}mbit")
        yield [
            Host(address, "eth0", tuple(lan.within(number))) for number, address in enumerate(lan.addresses)
        ]


def rate_mbit(order: Sequence[str]) -> int:
    """Of the slowest link in a ring of these nodes."""
    places = [int(name.removeprefix("node-")) for name in order]
    links = {tuple(sorted(pair)) for pair in pairwise([*places, places[0]])}
    return SLOW_MBIT if links & set(SLOW) else FAST_MBIT


def ring_of(daemon: Daemon) -> dict[str, Any]:
    ring: dict[str, Any] = (daemon.status() or {})["ring"]
    return ring
