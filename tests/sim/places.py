"""Places and nodes: a machine keeps its place in the network; with a fresh disk it is another node there."""

from __future__ import annotations

from typing import Final

STRIDE: Final = 10  # more than there are places


def node_at(place: int, disks: int) -> int:
    """Node id of whoever lives at a place (1 to 9) with its `disks`-th disk, counted from 0."""
    return place + STRIDE * disks


def place_of(node: int) -> int:
    """Where a node id lives."""
    return node % STRIDE
