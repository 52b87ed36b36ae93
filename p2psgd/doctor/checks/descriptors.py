"""May this user's processes open enough files for a link to every peer?"""

from __future__ import annotations

import resource
from typing import Final

from p2psgd.doctor.finding import Finding, ok, problem
from p2psgd.ops import numerals

CHECK: Final = "descriptors"
# Segments, sockets and eventfds of a trainer, files, the page's connections (64), greetings under way (32).
OTHERS: Final = 192
PER_PEER: Final = 2  # while one connection takes the place of another


def descriptors_needed(peers: int) -> int:
    """The most that a daemon with so many peers has open."""
    return OTHERS + PER_PEER * peers


def check_descriptors(peers: int, limits: tuple[int, int] | None = None) -> Finding:
    """`limits` soft and hard, by default this process's."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, whom = descriptors_needed(peers), numerals.counted(peers, "peer")
    if soft == resource.RLIM_INFINITY or soft >= needed:
        shown = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok(CHECK, f"{shown} files may be open, {needed:,} are enough for {whom}")
    words = f"only {soft:,} files may be open, {whom} may take {needed:,}"
    mend = f"ulimit -n {needed} before the start, or LimitNOFILE={needed} in the unit"
    if hard != resource.RLIM_INFINITY and hard < needed:
        mend = f"raise the hard limit ({hard:,}) in /etc/security/limits.conf, or {mend.split(', or ')[1]}"
    return problem(CHECK, words, mend)
