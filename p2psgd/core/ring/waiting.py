"""Whom the ring waits for, in one sentence for people.

What comes through the ring says little of that: it stops at the first member that has not given, and whatever
lies behind that one is missing too. So people are told what each member's own STATUS says, and who is silent.
Whoever has not been heard lately is named before anybody else: nobody gets on without it, whoever has given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from p2psgd.core.frontier import Origin
from p2psgd.core.parts import Parts
from p2psgd.core.ring.attempt import Attempt
from p2psgd.core.ring.standing import Standings

if TYPE_CHECKING:
    from p2psgd.core.ring.ring import Ring

NAMED_MAX: Final = 3
SILENT_STATUSES: Final = 1.5  # a STATUS comes each status_s; so many without any is silence
FRESH_STATUSES: Final = 0.5  # whoever gives its share later than that in a round says so at once (Ring.share)
ON_ITS_WAY_PATIENCES: Final = 0.5  # frames take their time


def describe_wait(ring: Ring, parts: Parts, standings: Standings, hindrance: str, now: float) -> str:
    """Empty where `explain` says already why this node is not READY."""
    if parts.me not in parts.membership.view or not parts.ready:
        return ""
    if ring.attempt is None:
        reason = hindrance or "the head is to begin"
        more = parts.membership.explain()
        return f"the ring has stood still for {now - ring.since:.1f} s: {reason}" + (
            f"; {more}" if more else ""
        )
    return _describe_round(ring, ring.attempt, parts, standings, now)


def _describe_round(ring: Ring, attempt: Attempt, parts: Parts, standings: Standings, now: float) -> str:
    """Of the latest round that is under way anywhere."""
    last = max(ring.done, standings.rounds(parts.membership.view))
    waited_s = now - max(ring.since, ring.given_at)
    said = f"round {last + 1} has waited for {waited_s:.1f} s"
    quiet = {each: now - _heard(ring, parts, each) for each in attempt.order if each != parts.me}
    silent = [each for each, quiet_s in quiet.items() if quiet_s > SILENT_STATUSES * parts.timing.status_s]
    if silent:
        return f"{said}: {_name(parts, silent)} not heard for {min(quiet[each] for each in silent):.1f} s"
    late, behind, unsure, untold = _sort_members(ring, attempt, parts, standings, last)
    if late:
        of_one = f"{_name(parts, late)}'s trainer"
        return f"{said} for {of_one if len(late) == 1 else f'the trainers of {_name(parts, late)}'}"
    if behind:
        return f"{said} for {_name(parts, behind)}, where not all of round {last} has come"
    if untold:
        return f"{said} for {_name(parts, untold)}"
    if unsure or waited_s <= ON_ITS_WAY_PATIENCES * parts.timing.patience_s:
        return ""
    return f"round {last + 1}: all shares are given and on their way for {waited_s:.1f} s"


def _sort_members(
    ring: Ring, attempt: Attempt, parts: Parts, standings: Standings, last: int
) -> tuple[list[Origin], list[Origin], list[Origin], list[Origin]]:
    """Whose trainer has not given to the round after `last`, who lacks `last`, whose word is too old to tell,
    and who has told nothing.
    """
    late, behind, unsure, untold = [], [], [], []
    fresh = ring.since + FRESH_STATUSES * parts.timing.status_s
    given = set(attempt.order).difference(ring.missing) if last == ring.done else set()
    for member in sorted(attempt.order):
        told = standings.of(member, parts.membership.view)
        mine = member == parts.me
        if told is None and not mine:
            if member not in given:
                untold.append(member)
            continue
        state = ring.state if told is None else told.state
        sure = told is None or (told.at >= fresh and state.attempt == attempt.number)
        if member in given or (state.round >= last and (state.contributed or not state.active)):
            continue
        if not sure:
            unsure.append(member)
        elif state.round < last:
            behind.append(member)
        else:
            late.append(member)
    return late, behind, unsure, untold


def _heard(ring: Ring, parts: Parts, member: Origin) -> float:
    """When it said anything itself, or, if it is not linked, when others had news of it; at the earliest when
    the wait began.
    """
    peer = parts.peers.get(member)
    return max(ring.since, parts.acks.heard(member)) if peer is None else peer.heard


def _name(parts: Parts, members: Sequence[Origin]) -> str:
    names = ["this node" if each == parts.me else parts.name_of(each) for each in members]
    more = f" and {len(names) - NAMED_MAX} more" if names[NAMED_MAX:] else ""
    return ", ".join(names[:NAMED_MAX]) + more
