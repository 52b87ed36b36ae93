"""A whole run on one machine, as separate processes on loopback: the demo, and the harness that tests drive.

Start reading at run.py. Daemons and trainers are the real commands; this package only starts them, looks
at their status as anybody could, and proves at the end that all replicas are the same bits.
"""

from p2psgd.cli.local.plan import Request, make_plan
from p2psgd.cli.local.run import run_local

__all__ = ["Request", "make_plan", "run_local"]
