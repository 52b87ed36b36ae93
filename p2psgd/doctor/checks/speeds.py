"""What the links carry, and what that means for a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from p2psgd.doctor.checks.clocks import milliseconds
from p2psgd.doctor.finding import Finding, note, ok
from p2psgd.doctor.peer import Peer
from p2psgd.ops import numerals

CHECK: Final = "link"
SLOW: Final = 1 / 4  # of what the others carry: a bad cable, a shared or shaped port


def describe_links(peers: Sequence[Peer]) -> list[Finding]:
    """A line for each peer that was measured."""
    rates = [rate for peer in peers for rate in (peer.sent_rate, peer.received_rate) if rate]
    usual = statistics.median(rates) if rates else 0.0
    found = []
    for peer in peers:
        sent, received, clock = peer.sent_rate, peer.received_rate, peer.clock
        if clock is None:
            continue
        words = f"{peer}: round trip {milliseconds(clock.round_trip_s)}"
        if sent is None or received is None:
            found.append(note(CHECK, f"{words}; what it carries was not measured, the machines were busy"))
            continue
        words += f", {bits(sent)} there, {bits(received)} back"
        if min(sent, received) < SLOW * usual:
            words += f"; others carry {bits(usual)}"
            found.append(
                note(CHECK, words, "look at its cable or port (ethtool eth0), and at what else uses it")
            )
        else:
            found.append(ok(CHECK, words))
    return found


def predict(weights: int, peers: Sequence[Peer], *, half: bool = False) -> Finding | None:
    """How long what is large takes at the slowest rate measured; None if none was."""
    rates = [rate for peer in peers for rate in (peer.sent_rate, peer.received_rate) if rate]
    if not rates:
        return None
    slowest, nodes = min(rates), len(peers) + 1
    snapshot_s = 4 * weights / slowest
    round_s = 2 * (nodes - 1) / nodes * (2 if half else 4) * weights / slowest
    sizes = f"{weights:,} weights take {seconds(snapshot_s)} as a snapshot"
    words = f"at {bits(slowest)}, the least measured, {sizes}"
    return note(CHECK, f"{words}, and {seconds(round_s)} for a dense ring's round of {nodes} nodes")


def bits(bytes_per_s: float) -> str:
    """A rate as networks are sold."""
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if 8 * bytes_per_s >= scale:
            return (
                f"{8 * bytes_per_s / scale:.3g} {unit}"
                if 8 * bytes_per_s < 999.5 * scale
                else (f"{8 * bytes_per_s / scale:,.0f} {unit}")
            )
    return f"{8 * bytes_per_s:.0f} bit/s"


def seconds(value: float) -> str:
    """As short as it makes sense."""
    return (
        numerals.duration(value) if value >= 10 else f"{value:.2g} s" if value >= 1 else milliseconds(value)
    )
