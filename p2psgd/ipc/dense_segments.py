"""The memory of a dense ring that a node's daemon and its trainers share: shares and sums (core's
DenseMemory).

Two sealed memfds, made by the daemon when the run is known. They outlive trainers: a share that was given
whole stays for the round. The trainer maps the sums for reading only.
"""

from __future__ import annotations

import numpy as np

from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.layout import dense_numbers
from p2psgd.ipc.segments import Access, create_segment, map_segment


class DenseSegments:
    """`shares` and `arrays` float32 (M,), in one segment, and `sums` float32 (2, M), as the daemon sees them;
    `descriptors` of both.
    """

    def __init__(self, weights: int) -> None:
        numbers = dense_numbers(weights)
        self.descriptors: list[int] = []
        try:
            for name in ("shares", "sums"):
                self.descriptors.append(create_segment(f"p2psgd-{name}", 4 * 2 * numbers))
            shares, sums = self.descriptors
            given = map_segment(shares, np.float32, 2 * numbers, Access.READ)
            self.shares, self.arrays = given.reshape(2, numbers)
            self.sums = map_segment(sums, np.float32, 2 * numbers, Access.WRITE).reshape(2, numbers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors; the maps go with their arrays."""
        close_descriptors(self.descriptors)
        self.descriptors = []
