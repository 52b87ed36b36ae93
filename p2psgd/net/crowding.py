"""Who gives way when all places for connections that have not said HELLO yet are taken.

One host that connects again and again, and says nothing, would else keep all others out, and so would many
hosts of one attacker. A node says HELLO within a round trip, so a connection that has had time for that gives
way to a host that has no place. A node that gave way dials again.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from p2psgd.net.known_hosts import Standing

# Longer than a round trip on nearly all links, so that a crowd of honest newcomers does not displace itself
# for ever. Not longer: an attacker that renews its connections at this age, 15 times a minute for each host
# (see net/greetings.py), needs 256 hosts to hold all places.
UNDISTURBED_S: Final = 0.5

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Place:
    """Taken by a host, or by a node if that is certain, since then; seconds, monotonic."""

    host: str
    standing: Standing
    since: float


def whom_to_displace(waiting: Mapping[Key, Place], newcomer: Place) -> Key | None:
    """The one of those that wait, the oldest first, that gives way. None: the newcomer has to go.

    Connections of the lowest standing give way to a newcomer of higher standing: of these the oldest of the
    host that has most places. It is the same among those of the newcomer's own standing, if that host has
    more than one more than the newcomer's; or if the newcomer's host has none, and the oldest was left
    UNDISTURBED_S. A host of higher standing is one of these if it has more than half of all places.
    """
    held = collections.Counter(place.host for place in waiting.values())
    lowest = min((place.standing for place in waiting.values()), default=newcomer.standing)
    weaker = lowest < newcomer.standing
    rivals = {
        key: place
        for key, place in waiting.items()
        if place.standing == (lowest if weaker else newcomer.standing)
        or (not weaker and 2 * held[place.host] > len(waiting))
    }
    if not rivals:
        return None
    most = max(held[place.host] for place in rivals.values())
    oldest, place = next((key, place) for key, place in rivals.items() if held[place.host] == most)
    if weaker or most > held[newcomer.host] + 1:
        return oldest
    disturbed = held[newcomer.host] == 0 and newcomer.since - place.since >= UNDISTURBED_S
    return oldest if disturbed else None
