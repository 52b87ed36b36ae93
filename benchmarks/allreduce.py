"""Summing an array over the nodes of a dense ring, beside PyTorch's gloo and beside plain sockets.

All run the same ring on the same hosts in the same run, in turns: on bare loopback, and on hosts whose links
carry 1 Gbit/s. There the limit is what each node must send, 2 (N - 1) / N of the array, at that rate; a TCP
packet's headers alone are 4.4 % of it. p2psgd sums twice: with `link.allreduce`, and as a round that changes
the weights of all.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import Figure
from benchmarks.ring.contenders import Contender, has_gloo, p2psgd_ring, plain
from benchmarks.ring.hosts import Host, can_shape, loopback, shaped

RATE: Final = "1gbit"
BYTES_PER_S: Final = 125e6
OURS: Final = "link.allreduce"
ROUND: Final = "a dense round"


@dataclass(slots=True)
class Taken:
    """Times of the rounds of one way of summing."""

    seconds: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)  # of a node, on average

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M float32, 58 MB, on four hosts."""
    hosts, count, rounds = (4, 14_600_000, 9) if large else (3, 300_001, 2)
    needed = 4 * count * 2 * (hosts - 1) / hosts
    with loopback(hosts) as places:
        figures = compare("loopback", places, count, rounds)
    if not can_shape():
        return [*figures, Figure("shaped links", 0, "measured", "need root, ip and tc")]
    with shaped(hosts, rate=RATE) as places:
        return figures + compare("1 Gbit/s", places, count, rounds, limit_s=needed / BYTES_PER_S)


def compare(
    where: str, hosts: Sequence[Host], count: int, rounds: int, *, limit_s: float | None = None
) -> list[Figure]:
    """Figures of all contenders there."""
    taken, result = measure(hosts, count, rounds)
    figures = []
    if limit_s is not None:
        figures.append(Figure(f"{where}: limit", 1e3 * limit_s, "ms", "2 (N - 1) / N of the bytes"))
    for name, each in taken.items():
        spread = f"{rounds} rounds, {1e3 * min(each.seconds):.0f} to {1e3 * max(each.seconds):.0f}"
        figures.append(Figure(f"{where}: {name}", 1e3 * each.median_s, "ms", f"median of {spread}; {result}"))
    figures += ratios(where, taken, limit_s)
    if limit_s is not None:
        needed = 4 * count * 2 * (len(hosts) - 1) / len(hosts)
        for name, each in taken.items():
            more = 100 * (statistics.median(each.bytes_sent) / needed - 1)
            note = f"above 2 (N - 1) / N of {4 * count} bytes, at the interface; target < 1 %"
            figures.append(Figure(f"{where}: bytes per node, {name}", more, "%", note))
    return figures


def ratios(where: str, taken: Mapping[str, Taken], limit_s: float | None) -> list[Figure]:
    figures = []
    for name in (OURS, ROUND):
        own_s = taken[name].median_s
        if limit_s is not None:
            note = "target 0.9"
            figures.append(Figure(f"{where}: limit to {name}", limit_s / own_s, "of the rate", note))
        if "gloo" in taken:
            note = "target 0.7" if limit_s is None else "target 1"
            ratio = taken["gloo"].median_s / own_s
            figures.append(Figure(f"{where}: {name}, rate to gloo's", ratio, "times", note))
    return figures


def measure(hosts: Sequence[Host], count: int, rounds: int) -> tuple[dict[str, Taken], str]:
    """By name, and the one result that all have."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours, _ = stack.enter_context(p2psgd_ring(hosts, count, directory / "ring"))
        ways: dict[str, tuple[Contender, tuple[str, ...]]] = {
            OURS: (ours, ("allreduce",)),
            ROUND: (ours, ("round", "together", "0")),
            "plain sockets": (stack.enter_context(plain("raw", hosts, count)), ()),
        }
        if has_gloo():
            ways["gloo"] = (stack.enter_context(plain("gloo", hosts, count)), ())
        taken = {name: Taken() for name in ways}
        sums = set()
        for number in range(rounds + 1):  # the first warms up: memory is touched, windows grow
            for name, (contender, words) in ways.items():
                before = bytes_sent(hosts)
                seconds, result = contender.round(*words)
                sums.add(result)
                if number:
                    taken[name].seconds.append(seconds)
                    taken[name].bytes_sent.append((bytes_sent(hosts) - before) / len(hosts))
        assert len(sums) == 1, f"different sums: {sums}"
        note = f"result {sums.pop()}"
        return taken, note if has_gloo() else f"{note}; no gloo: the extra `test-torch` is not installed"


def bytes_sent(hosts: Sequence[Host]) -> int:
    """Return the bytes that all interfaces have sent."""
    return sum(host.bytes_sent() for host in set(hosts))
