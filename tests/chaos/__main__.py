"""Runs the chaos: `python -m tests.chaos --minutes M [--seed S] [--nodes N] [--mode MODE] [--spare]
[--json FILE]`; needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from p2psgd.base.interruption import Interruption
from tests.certificates import Certificates
from tests.chaos import account
from tests.chaos.chaos import RATE
from tests.chaos.disks import Disk
from tests.chaos.harness import Harness, Options
from tests.chaos.nodes import Node
from tests.lan import Lan

MODES: Final = (
    *("async", "owners", "owners-rounds", "owners-adagrad", "owners-rounds-nesterov"),
    "closure",
)
NODES: Final = (2, 16)  # least and most
TOOLS: Final = ("ip", "tc", "mount", "setpriv")


def run(options: Options, *, directory: Path) -> dict[str, Any]:
    """Build all that a run needs, run it, and take everything away; KeyboardInterrupt at a second signal."""
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {words}", flush=True)

    mark = secrets.token_hex(16)
    with Interruption() as interruption, contextlib.ExitStack() as undo:
        lan = undo.enter_context(Lan(options.nodes, rate=RATE))
        nodes, certificates = [], Certificates(directory)
        hosts = directory / "hosts.txt"
        hosts.write_text("".join(f"{address}\n" for address in lan.addresses))
        for number in range(options.nodes):
            disk = undo.enter_context(Disk(directory / "disks" / f"node-{number}"))
            within = lan.within(number)
            node = Node(
                number,
                directory=directory,
                hosts=hosts,
                disk=disk,
                run=mark,
                within=within,
                certificates=certificates,
                mode=options.mode,
            )
            nodes.append(node)
        for node in nodes:
            undo.callback(node.end)
        harness = Harness(
            options, lan=lan, nodes=nodes, directory=directory, interruption=interruption, say=say
        )
        return harness.execute()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="what the faults are drawn from (default: 1)")
    parser.add_argument("--nodes", type=int, default=6, help="how many nodes (default: 6)")
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="how nodes exchange updates")
    parser.add_argument(
        "--spare",
        action="store_true",
        help="no daemon loses its memory, and every mini-batch must count",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the account here, for machines")
    arguments = parser.parse_args()
    if not NODES[0] <= arguments.nodes <= NODES[1]:
        parser.error(f"a run has {NODES[0]} to {NODES[1]} nodes")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        parser.error(f"network namespaces need root, and {', '.join(missing or TOOLS)}")
    options = Options(arguments.minutes, arguments.seed, arguments.nodes, arguments.mode, arguments.spare)
    directory = Path(tempfile.mkdtemp(prefix="p2psgd-chaos-"))
    passed = False
    try:
        done = run(options, directory=directory)
        print(f"\n{account.text(done)}")
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(done, indent=2) + "\n")
        passed = done["passed"]
    except KeyboardInterrupt:
        print("killed: everything was ended at once, and nothing is told")
    finally:
        shutil.rmtree(directory / "disks", ignore_errors=True)
        if passed:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"the nodes' logs are in {directory}")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
