"""`env:VARIABLE`: a list in an environment variable, separated by commas or spaces.

A process's environment does not change from outside, so neither does the answer.
"""

from __future__ import annotations

import os
import re

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address, parse_hosts
from p2psgd.net.peer_sources.source import PeerSource


def from_variable(name: str) -> PeerSource:
    """Return the source that reads this variable; UsageError if no variable can have that name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"--peers env:VARIABLE: {name!r:.80} is not the name of an environment variable")

    def ask() -> tuple[Address, ...]:
        value = os.environ.get(name)
        if value is None:
            words = f"--peers env:{name}: there is no variable {name} in the environment; set it to HOST,HOST"
            raise UsageError(words, ExitCode.CONFIGURATION)
        return parse_hosts("\n".join(value.replace(",", " ").split()), f"${name}, each entry a line,")

    return PeerSource(f"env:{name}", ask, ordered=True)
