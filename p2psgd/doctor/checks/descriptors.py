"""May this user's processes open enough files for a link to every peer?"""

from __future__ import annotations

import resource
from typing import Final

from p2psgd.doctor.finding import Finding, ok, problem
from p2psgd.ops import numerals

CHECK: Final = "descriptors"
# The numbers kept for files and a trainer (64), what is open from the start (24), greetings under way (32),
# the page's connections (32), commands of this machine.
OTHERS: Final = 192
PER_PEER: Final = 2  # while one connection takes the place of another


def descriptors_needed(peers: int) -> int:
    """The most that a daemon with so many peers has open."""
    return OTHERS + PER_PEER * peers


def check_descriptors(peers: int, hard: int | None = None) -> Finding:
    """`hard` is the hard limit, to which a daemon raises its own; by default this process's."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    needed, whom = descriptors_needed(peers), numerals.counted(peers, "peer")
    if limit == resource.RLIM_INFINITY or limit >= needed:
        shown = "any number of" if limit == resource.RLIM_INFINITY else f"{limit:,}"
        return ok(CHECK, f"{shown} files may be open, {needed:,} are enough for {whom}")
    words = f"only {limit:,} files may be open (hard limit), {whom} may take {needed:,}"
    mend = f"raise the hard limit in /etc/security/limits.conf, or LimitNOFILE={needed} in the unit"
    return problem(CHECK, words, mend)
