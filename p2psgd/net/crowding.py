"""Who gives way when all places for connections that have not said HELLO yet are taken.

One host that connects again and again, and says nothing, would else keep all others out.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def whom_to_displace(waiting: Mapping[Key, str], newcomer: str) -> Key | None:
    """The oldest of the host that has most places, if that has more than one more than the newcomer's host.

    `waiting`: the host of each place that is taken, the oldest first. None: the newcomer has to go.
    """
    held = collections.Counter(waiting.values())
    if not held:
        return None
    crowd, most = held.most_common(1)[0]
    if most <= held[newcomer] + 1:
        return None
    return next(key for key, host in waiting.items() if host == crowd)
