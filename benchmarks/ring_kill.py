"""kill -9 of one of the nodes of a dense ring in mid-round: how soon the others complete a round without it,
and how soon it is back by a snapshot.

The victim has given the first half of its share and not the second. In every round that more than one node
has noted, all must have the same weights.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import Figure
from benchmarks.ring.contenders import with_ports
from benchmarks.ring.hosts import Host
from tests.daemons import Daemon, all_stopped, until

PACE_S: Final = 0.2  # of computing in a round
HOME: Final = Host("127.0.0.1", "lo")


@dataclass(frozen=True, slots=True)
class Done:
    """A round that a trainer has noted as complete."""

    round: int
    at: float
    weights: str
    contributors: int


class KilledNode:
    """A node of the experiment, over its lives."""

    def __init__(
        self, directory: Path, number: int, listen: str, options: tuple[str, ...], count: int
    ) -> None:
        self.name = f"node-{number}"
        self._directory = directory
        self._notes = directory / f"{self.name}.notes"
        trainer = f"{sys.executable} -m benchmarks.ring.halfway {self._notes} {count} {PACE_S}"
        self._options = (*options, "--listen", listen, "--insecure-plaintext", "--trainer", trainer)
        self._lives = 0

    def start(self, daemons: list[Daemon]) -> None:
        self._lives += 1
        log = self._directory / f"{self.name}.{self._lives}.log"
        self.daemon = Daemon(self._directory / self.name, *self._options, log=log)
        daemons.append(self.daemon)

    def lines(self, kind: str) -> list[list[str]]:
        """Whole lines only: a kill may tear the last."""
        text = self._notes.read_text() if self._notes.exists() else ""
        lines = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [rest for first, *rest in lines if first == kind]

    def done(self, since: float = 0.0) -> list[Done]:
        made = (Done(int(r), float(at), crc, int(nodes)) for r, at, crc, nodes in self.lines("done"))
        return [each for each in made if each.at > since]

    def counters(self) -> dict[str, Any]:
        return (self.daemon.status() or {}).get("counters") or {}


def run(*, large: bool) -> list[Figure]:
    """Large: five nodes, each killed once."""
    count, failure_timeout_s, kills, weights = (5, 2.0, 5, 500_000) if large else (3, 1.0, 1, 5_000)
    with tempfile.TemporaryDirectory() as folder, all_stopped([]) as daemons:
        directory = Path(folder)
        listed = with_ports([HOME] * count)
        hosts = directory / "hosts.txt"
        hosts.write_text("".join(f"{each}\n" for each in listed))
        options = ("--peers", str(hosts), "--failure-timeout", f"{failure_timeout_s:g}")
        nodes = [KilledNode(directory, n, listen, options, weights) for n, listen in enumerate(listed)]
        for node in nodes:
            node.start(daemons)
        gone, back = [], []
        for victim in nodes[:kills]:
            until(lambda: all_share(nodes), "all have a share in a round", timeout_s=100)
            killed = kill_in_mid_round(victim)
            others = [node for node in nodes if node is not victim]
            gone.append(seconds_without(others, killed))
            started = time.monotonic()
            victim.start(daemons)
            back.append(seconds_to_return(victim, started, count))
        shared, last = compare(nodes)
    spread = f"median of {kills} kills" if kills > 1 else "one kill"
    waits = sorted(gone)
    return [
        Figure(
            "longest wait of the others for their next round",
            waits[-1] / failure_timeout_s,
            "failure timeouts",
            f"target 2; of {count} nodes, failure timeout {failure_timeout_s:g} s: "
            f"{', '.join(f'{s:.2f}' for s in gone)} s",
        ),
        Figure("the same, in the middle", waits[len(waits) // 2], "s", spread),
        Figure("from its start to its first whole round", sorted(back)[len(back) // 2], "s", "by snapshot"),
        Figure("rounds alike at all nodes that noted them", shared, "rounds", f"result {last}"),
    ]


def all_share(nodes: list[KilledNode]) -> bool:
    """The last round that each has noted had a share of every node."""
    last = [node.done()[-1:] for node in nodes]
    return all(each and each[0].contributors == len(nodes) for each in last)


def kill_in_mid_round(victim: KilledNode) -> float:
    """Returns when."""
    known = len(victim.lines("half"))
    while len(victim.lines("half")) == known:
        time.sleep(0.01)
    victim.daemon.kill()
    killed = time.monotonic()
    number = int(victim.lines("half")[-1][0])
    assert all(done.round < number for done in victim.done()), "it was not killed in mid-round"
    return killed


def seconds_without(others: list[KilledNode], killed: float) -> float:
    """From the kill to the end of the first round that all others have completed after it."""

    def completed() -> bool:
        return all(node.done(killed) for node in others)

    until(completed, "the others go on", timeout_s=100)
    first = [node.done(killed)[0] for node in others]
    return max(done.at for done in first) - killed


def seconds_to_return(victim: KilledNode, started: float, nodes: int) -> float:
    def shares() -> list[Done]:
        return [done for done in victim.done(started) if done.contributors == nodes]

    until(shares, "the victim has a share in a round of all", timeout_s=100)
    assert victim.counters()["snapshots_taken"], "the victim came back without a snapshot"
    return shares()[0].at - started


def compare(nodes: list[KilledNode]) -> tuple[int, str]:
    """Count the rounds that more than one node has noted; also return the weights of the last of them."""
    noted: dict[int, list[str]] = {}
    for node in nodes:
        for done in node.done():
            noted.setdefault(done.round, []).append(done.weights)
    shared = {number: weights for number, weights in noted.items() if len(weights) > 1}
    for number, weights in shared.items():
        assert len(set(weights)) == 1, f"round {number}: different weights: {weights}"
    return len(shared), shared[max(shared)][0]
