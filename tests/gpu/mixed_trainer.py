"""`p2psgd train` of one of a few nodes, only the last of which is on the CPU: for `p2psgd local --trainer`.

`python -m tests.gpu.mixed_trainer NODES WORD...`: its daemon's directory, node-0 and so on, says which it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

nodes, *words = sys.argv[1:]
number = int(Path(os.environ["P2PSGD_CONTROL"]).name.removeprefix("node-"))
device = "cpu" if number == int(nodes) - 1 else "cuda:0"
command = [
    sys.executable,
    "-m",
    "p2psgd",
    "train",
    "--rank",
    f"{number}/{nodes}",
    "--device",
    device,
    *words,
]
os.execv(command[0], command)
