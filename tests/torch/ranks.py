"""Starts the ranks of a group as torchrun does, but without PyTorch: python ranks.py RANKS SCRIPT ...

torchrun imports PyTorch itself, which is as much work as a short test of a rank. The ranks meet by a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from types import FrameType


def main() -> int:
    ranks, *script = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        group = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_FILE": os.path.join(folder, "group")}
        processes = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", *script],
                env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(int(ranks))
        ]

        def end(_signal: int, _frame: FrameType | None) -> None:
            for each in processes:
                each.terminate()

        signal.signal(signal.SIGTERM, end)
        while None in (codes := [each.poll() for each in processes]) and not any(codes):
            time.sleep(0.05)
        for each in processes:
            if each.poll() is None:  # another one has failed
                each.kill()
                each.wait()
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
