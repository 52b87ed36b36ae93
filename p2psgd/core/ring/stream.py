"""How a bucket is cut, and the order in which its numbers go through one link of the ring.

[Baidu ring 2017]: a bucket of K numbers is cut into a chunk for each of N nodes, chunk c from K * c // N on;
of few numbers some chunks are empty. Through each link go 2N - 2 chunks, one for each hop: first sums on the
way to be whole (hops 0 to N - 2), then whole ones. The node at place p sends chunk p first, then p - 1, and
so on round the circle, and so receives from p - 1 on downwards. What it receives at a hop it sends at the
next, which makes one sequence of numbers of each link: a place in it says all about how far a bucket has
come.
"""

from __future__ import annotations


class Stream:
    """A place in that sequence: number `at` of the chunk of `hop`; `passed` numbers came before it."""

    def __init__(self, count: int, nodes: int, first: int) -> None:
        """Of a bucket of `count` numbers; `first` is the chunk of hop 0."""
        self.hop = 0
        self.at = 0
        self.passed = 0
        self._count = count
        self._nodes = nodes
        self._first = first
        self._skip()

    @property
    def over(self) -> bool:
        """All has passed."""
        return self.hop == 2 * self._nodes - 2

    def rest(self) -> tuple[int, int]:
        """What is still to pass of this hop's chunk, as a range of the bucket; not after the end."""
        start, end = self._bounds()
        return start + self.at, end

    def advance(self, count: int) -> None:
        """So many of `rest` have passed."""
        self.at += count
        self.passed += count
        self._skip()

    def _bounds(self) -> tuple[int, int]:
        chunk = (self._first - self.hop) % self._nodes
        return self._count * chunk // self._nodes, self._count * (chunk + 1) // self._nodes

    def _skip(self) -> None:
        """Go on to the next hop that has numbers left."""
        while not self.over:
            start, end = self._bounds()
            if self.at < end - start:
                return
            self.hop, self.at = self.hop + 1, 0
