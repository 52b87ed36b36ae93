"""For each line on standard input a process that writes checkpoints into a folder until it is killed.

Says its id, then the number of each checkpoint that it has written, and `dead` after it was killed. Forks,
since a Python of its own would take longer to start than all the rest.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from p2psgd.storage.checkpoint_store import CheckpointStore
from tests.storage.states import checkpoint

STATES = [checkpoint(seed=seed) for seed in range(3)]


def say(words: object) -> None:
    os.write(1, f"{words}\n".encode())


def write_on(folder: Path, parent: int) -> None:
    say(os.getpid())
    store = CheckpointStore(folder)
    for state in itertools.cycle(STATES):
        if os.getppid() != parent:
            os._exit(1)
        say(store.write(state).number)


def main() -> None:
    parent = os.getpid()
    for _ in sys.stdin:
        writer = os.fork()
        if not writer:
            write_on(Path(sys.argv[1]), parent)
        os.waitpid(writer, 0)
        say("dead")


if __name__ == "__main__":
    main()
