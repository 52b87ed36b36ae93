"""A run on a Ray cluster: `p2psgd.ray.run("train.py", nodes=(2, 16))`; see docs/engines/ray.md.

Start reading at driver.py. Each node is a Ray actor that holds the real commands as child processes
(node.py). Ray places the actors, starts them again, and enlarges a cluster that has no room for all of them.
"""

from p2psgd.ray.driver import Result, run

__all__ = ["Result", "run"]
