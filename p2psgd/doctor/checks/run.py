"""Do all nodes train the same run, from the same list of hosts?"""

from __future__ import annotations

from typing import Final

from p2psgd.doctor.finding import Finding, note, problem
from p2psgd.doctor.messages import Facts
from p2psgd.net.greeting import DOCTOR, RUN_UNKNOWN, describe_difference
from p2psgd.wire.messages import Hello

CHECK: Final = "run"


def compare_runs(name: str, ours: Hello, theirs: Hello) -> Finding | None:
    """None if they are the same, or one does not know its own."""
    if RUN_UNKNOWN in (ours.run, theirs.run) or ours.run == theirs.run:
        return None
    words = describe_difference(_plain(ours), _plain(theirs.model_copy(update={"name": name})))
    return problem(CHECK, words, "the same recipe file, and the same data, on both: sha256sum RECIPE")


def compare_hosts(name: str, ours: Facts, theirs: Facts) -> Finding | None:
    """None if the lists are the same."""
    if ours.hosts == theirs.hosts:
        return None
    words = f"{name} has another list of hosts, or another order: shares of the data go by the place in it"
    return note("hosts", words, "copy the same file to all machines, or give each trainer its --share i/n")


def _plain(hello: Hello) -> Hello:
    """With the mode of its run."""
    mode = hello.mode.removeprefix(DOCTOR).strip()
    return hello.model_copy(update={"mode": mode or "unknown"})
