"""docs/how-to/operations.md, followed to the letter on machines with a systemd of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.daemons import until
from tests.operations.document import Block, read_blocks
from tests.operations.machines import CHECKOUT, Machines, is_possible

PAGE: Final = CHECKOUT / "docs" / "how-to" / "operations.md"
DESK: Final = "desk"
VMS: Final = ["node-1", "node-2", "node-3"]
INSTALLING: Final = ("2. ", "3. ", "4. ")
# The page sends its reader back to the installation, on this machine, once the desk has sent what it needs.
NEWCOMERS: Final = {"Add a machine": "node-4", "Replace a VM that is dead": "node-3"}
NEEDS: Final = "needs root, systemd, cgroup2 and Debian's python3 of this version"


class Reader:
    """Somebody who does what the page says. `members`: the names of the nodes that run, by machine."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._blocks = read_blocks(PAGE)
        self.members: dict[str, str] = {}

    def follow_all(self) -> None:
        for section in dict.fromkeys(block.section for block in self._blocks):
            self._follow(section)

    def _follow(self, section: str) -> None:
        if section.startswith("Replace"):
            self._machines.stop("node-3")
            del self.members["node-3"]
        for block in self._of(section):
            self._type(block, list(self.members) or VMS)
            if block.where == DESK and section in NEWCOMERS:
                self._install(NEWCOMERS[section])
        if section.startswith("4. "):
            self.members = {name: name for name in VMS}
        elif section.startswith("Add"):
            self.members["node-4"] = "node-4"
        elif section.startswith("Replace"):
            self.members["node-3"] = "node-3b"
        elif section.startswith("Take"):
            del self.members["node-2"]
        if self.members:
            self.see_it_train()

    def _install(self, machine: str) -> None:
        self._machines.start(machine)
        for section in dict.fromkeys(b.section for b in self._blocks if b.section.startswith(INSTALLING)):
            for block in self._of(section):
                self._type(block, [machine])

    def _of(self, section: str) -> list[Block]:
        return [block for block in self._blocks if block.section == section]

    def _type(self, block: Block, each: list[str]) -> None:
        names = each if block.where == "each" else [block.where]
        with ThreadPoolExecutor(len(names)) as threads:
            done = list(threads.map(lambda name: self._machines.run(name, block.script), names))
        for name, (code, words) in zip(names, done, strict=True):
            print(f"--- {PAGE.name}:{block.line} on {name}: {code}\n{words}", flush=True)
        for name, (code, words) in zip(names, done, strict=True):
            place = f"{PAGE.name}, line {block.line}, on {name}"
            assert code == 0, f"{place}: exit code {code}\n{block.script}\n{words}"

    def see_it_train(self) -> None:
        """Wait until all members are linked over TLS and ready, and what is trained arrives at each.

        At first one node trains and the others follow it, so it is not mini-batches that are waited for.
        """
        for machine in self.members:
            until(partial(self._is_well, machine), f"{machine} is well", timeout_s=120)
        for machine, digest in {each: self._digest(each) for each in self.members}.items():
            until(partial(self._has_moved, machine, digest), f"{machine} moves on", timeout_s=120)

    def _is_well(self, machine: str) -> bool:
        status = self._status(machine)
        others = {name for there, name in self.members.items() if there != machine}
        linked = {peer["node"] for peer in status.get("peers", ()) if peer["state"] == "connected"}
        return others <= linked and bool(status["tls"]) and bool(status.get("ready"))

    def _has_moved(self, machine: str, since: str | None) -> bool:
        return self._digest(machine) not in (since, None)

    def _digest(self, machine: str) -> str | None:
        return self._status(machine).get("digest")

    def _status(self, machine: str) -> dict[str, Any]:
        code, words = self._machines.run(machine, "p2psgd status --json 2>/dev/null")
        found: dict[str, Any] = json.loads(words) if code == 0 else {}
        return found


@pytest.mark.root
@pytest.mark.timeout(900)
def test_who_follows_the_page_gets_a_cluster_over_tls_and_keeps_it(tmp_path: Path) -> None:
    if not os.environ.get("P2PSGD_OPERATIONS"):
        pytest.skip("takes minutes on five machines: make test-operations")
    if not is_possible():
        pytest.skip(NEEDS)
    with Machines([*VMS, "node-4", DESK], tmp_path) as machines:
        with ThreadPoolExecutor() as threads:
            list(threads.map(machines.start, (*VMS, DESK)))
        Reader(machines).follow_all()


def test_the_units_are_understood_by_systemd_and_closed_enough() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    done = subprocess.run([CHECKOUT / ".ci" / "check-units"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Overall exposure level for p2psgd") == 2


def test_every_block_of_the_page_says_where_it_is_typed() -> None:
    known = {*VMS, DESK, "node-4", "each"}
    blocks = read_blocks(PAGE)
    assert {block.where for block in blocks} <= known
    assert all(any(block.section == section for block in blocks) for section in NEWCOMERS)


def test_a_block_that_does_not_say_where_it_is_typed_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('## A\n```sh title="desk"\necho 1\n```\n```\necho 2\n```\n')
    with pytest.raises(ValueError, match=r"page.md line 5: '```' does not say where"):
        read_blocks(page)
