"""A Ray cluster on this machine, as a process: `python -m tests.engines.ray_cluster PLACE NUMBER`.

Each of the NUMBER machines is a raylet with one CPU and a home directory of its own in PLACE, so that no
state of one is found on another; the head has no CPU. A line on standard input adds a machine. For each there
is a line `MACHINE RAYLET` on standard output, with the raylet's process; the first line has the cluster's
address.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from ray.cluster_utils import Cluster


def run(place: Path, number: int) -> None:
    """Start the cluster, and end it with the standard input."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    print(cluster.address, flush=True)
    try:
        machines = (f"machine-{count}" for count in range(1000))
        for _ in range(number):
            add(cluster, place / next(machines))
        for _ in sys.stdin:
            add(cluster, place / next(machines))
    finally:
        cluster.shutdown()


def add(cluster: Cluster, home: Path) -> None:
    """Add a machine."""
    home.mkdir()
    node = cluster.add_node(num_cpus=1, env_vars={"HOME": str(home)})
    (raylet,) = node.all_processes["raylet"]
    # A raylet that is killed must be gone, and no zombie: its actors look for its number.
    threading.Thread(target=raylet.process.wait, daemon=True).start()
    print(home.name, raylet.process.pid, flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
