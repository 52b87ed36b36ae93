"""A dense ring whose trainers give their tensors while back-propagation still goes on, against the same that
give them at its end.

Computing, a sleep in as many slices as there are tensors, is made as long as a round of the ring alone takes
there, so that without overlap half of the time is computing. Rounds of both kinds alternate.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path

from benchmarks import Figure
from benchmarks.ring.contenders import p2psgd_ring
from benchmarks.ring.hosts import can_shape, loopback, shaped


def run(*, large: bool) -> list[Figure]:
    """Large: 4 M weights in 16 tensors, four hosts at 300 Mbit/s."""
    hosts, count, tensors, pairs = (4, 4_000_000, 16, 9) if large else (3, 100_000, 4, 2)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = shaped(hosts, rate="300mbit") if can_shape() else loopback(hosts)
        ring = p2psgd_ring(stack.enter_context(net), count, directory / "ring", tensors=tensors)
        contender, _ = stack.enter_context(ring)
        alone = [contender.round("round", "together", "0")[0] for _ in range(4)]
        computing_s = statistics.median(alone[1:])
        together, overlapped = [], []
        for _ in range(pairs):
            seconds, result = contender.round("round", "together", f"{computing_s:.4f}")
            together.append(seconds)
            seconds, other = contender.round("round", "overlapped", f"{computing_s:.4f}")
            overlapped.append(seconds)
            assert result == other
    less = [100 * (1 - soon / late) for soon, late in zip(overlapped, together, strict=True)]
    note = f"target 15; {pairs} pairs, {min(less):.0f} to {max(less):.0f}; result {result}"
    return [
        Figure("computing", 1e3 * computing_s, "ms", "as long as the ring alone takes"),
        Figure("a round without overlap", 1e3 * statistics.median(together), "ms", ""),
        Figure("a round with overlap", 1e3 * statistics.median(overlapped), "ms", f"{tensors} tensors"),
        Figure("less time with overlap", statistics.median(less), "%", note),
    ]
