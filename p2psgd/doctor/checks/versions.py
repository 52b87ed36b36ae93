"""Is the same p2psgd installed everywhere?"""

from __future__ import annotations

import platform
from typing import Final

import numpy as np

import p2psgd
from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.doctor.messages import Facts
from p2psgd.wire.messages import PROTOCOL_VERSION

CHECK: Final = "versions"


def describe_own() -> Finding:
    """What runs here."""
    parts = (
        f"p2psgd {p2psgd.__version__}, protocol {PROTOCOL_VERSION}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
        f"Linux {platform.release()} on {platform.machine()}",
    )
    return ok(CHECK, ", ".join(parts))


def compare_versions(name: str, ours: Facts, theirs: Facts) -> Finding | None:
    """None if nothing differs that could matter."""
    if theirs.version != ours.version:
        words = f"p2psgd {theirs.version} on {name}, {ours.version} here"
        return problem(
            CHECK, words, f"install the same on both: pip install p2psgd=={max(theirs.version, ours.version)}"
        )
    if (theirs.python, theirs.numpy) != (ours.python, ours.numpy):
        words = f"{name} has Python {theirs.python} and numpy {theirs.numpy}: no matter for p2psgd"
        return note(CHECK, f"{words}; a script of your own may care")
    return None
