"""Wait at the end of a training until the last steps of the peers have come, or none comes any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from p2psgd.base.formatting import counted, say
from p2psgd.client.link import Link

WAIT_S: Final = 3600.0  # for all of them
# How long peers may send nothing before they are taken to have ended:
SILENCE_S: Final = 30.0  # a peer may evaluate its model
SILENCE_UNLINKED_S: Final = 5.0
GAPS_OF_SILENCE: Final = 2
TURN_S: Final = 0.5  # from one look at that to the next
SAID_AFTER_S: Final = 1.0  # a shorter wait is no news
SETTLING_S: Final = 10.0


def wait_for_last_steps(
    link: Link, wanted: int, follow: Callable[[], object], *, silence_s: float | None, wait_s: float
) -> bool:
    """Call `follow`, which applies what has come, until each peer has made `wanted` steps.

    Args:
        link: The node's link, in asynchronous mode.
        wanted: The number of steps to wait for.
        follow: Called after each arrival.
        silence_s: The seconds without an update of those that are behind, after which they are taken to have
            ended; None: as long as `silence_limit_s` says.
        wait_s: The seconds to wait at most.

    Returns:
        True if all have made them; False after silence or `wait_s`, or if the daemon asks the script to end.
    """
    began = last = time.monotonic()
    best, said = -1, False
    try:
        while behind := {node: made for node, made in link.peer_steps.items() if made < wanted}:
            now, made = time.monotonic(), sum(behind.values())
            if made > best:
                best, last = made, now
            limit_s = silence_limit_s(link, behind) if silence_s is None else silence_s
            if link.stopping:
                return False
            if now - last >= limit_s or now - began >= wait_s:
                say(
                    f"{counted(len(behind), 'peer')} may have more steps to make, and sent nothing for"
                    f" {now - last:.0f} s: this node goes on without them"
                )
                return False
            if not said and now - began > SAID_AFTER_S:
                said = True
                words = f"the last steps of {counted(len(behind), 'peer')}"
                say(f"waiting for {words}, until none comes for {limit_s:.0f} s, {wait_s:.0f} s at most")
                link.report(waits=words)
            if link.wait(min(limit_s, TURN_S)):
                follow()
    finally:
        if said:
            link.report(waits="")
    return True


def settle(link: Link, follow: Callable[[], object]) -> None:
    """Call `follow` until nothing has come for a moment, SETTLING_S at most."""
    end = time.monotonic() + SETTLING_S
    while link.wait(link.mode.settled_s) and not link.stopping and time.monotonic() < end:
        follow()


def silence_limit_s(link: Link, peers: Iterable[int]) -> float:
    """Return after how many seconds without an update these peers are taken to have ended."""
    linked = link.linked_peers().intersection(peers)
    if not linked:
        return SILENCE_UNLINKED_S
    return max(SILENCE_S, *(GAPS_OF_SILENCE * link.longest_gap_s(peer) for peer in linked))
