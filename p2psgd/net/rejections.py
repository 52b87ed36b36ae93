"""Rejections and drops: counted, logged once a minute, and judged when they may be this node's fault."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable
from typing import Final

from p2psgd.base.errors import ExitCode
from p2psgd.core.frontier import TOLD_MAX
from p2psgd.wire.reject import INCARNATION_CODES, PeerError, RejectCode

# ----------------------------------------------------------------------------
# Peers do not want this node: is it the one that is wrong?
#
# One peer that refuses may be wrong itself, or lie. But when no peer has accepted this node for one failure
# timeout after a refusal, it is this node that a person must repair: another run, a copied state directory,
# another protocol. A node that was started again elsewhere is refused by every peer; its old incarnation ends
# the same way, also when it was linked before.
#
# A node that has lost its state, on a machine whose clock is behind, looks like an old incarnation. The codes
# differ: SUPERSEDED says that a newer incarnation is linked there, BEHIND that one is known and not linked.
# So an incarnation that was never a member ends after one failure timeout of BEHIND without SUPERSEDED, and
# the process begins another, above the reported one. Two clones cannot drive each other up without end: one
# that was a member never begins again, none does while the other is linked, and none more than RESTARTS_MAX -
# 1 times.


# Codes of REJECT that waiting does not cure.
OUR_FAULT: Final = frozenset({RejectCode.RUN, RejectCode.IDENTITY, RejectCode.PROTOCOL})
RESTARTS_MAX: Final = 4  # of one process: a clone may be in the way once or twice, more is no accident
# A peer closes the link to a dead incarnation after four failure timeouts, and sends SUPERSEDED to the next
# one until then.
DEAD_TIMEOUTS: Final = 5


class Rejections:
    """A judge of refusals, which counts on links to prove them wrong. If none does, it calls `fail` with a
    sentence, or `begin_again` with the incarnation above which this node goes on, and a sentence.

    `incarnation`: the present one; `incarnations_left`: how many may follow in this process; `linked_now`:
    whether any peer is linked.
    """

    def __init__(
        self,
        failure_timeout_s: float,
        *,
        incarnation: int,
        incarnations_left: int,
        linked_now: Callable[[], bool],
        fail: Callable[[str, ExitCode], None],
        begin_again: Callable[[int, str], None],
    ) -> None:
        self._failure_timeout_s = failure_timeout_s
        self._incarnation = incarnation
        self._incarnations_left = incarnations_left
        self._linked_now = linked_now
        self._fail = fail
        self._begin_again = begin_again
        self._ever_linked = False
        self._ever_admitted = False
        self._timer: asyncio.TimerHandle | None = None
        self._told: dict[RejectCode, str] = {}  # words by code, since the last judgement,
        self._newest = 0  # the highest incarnation told with BEHIND that can be believed,
        self._elsewhere = False  # somebody, also one who does not count, has told of a life that runs
        self._superseded_since: float | None = None

    def linked(self) -> None:
        """Record that a peer has accepted this node."""
        self._ever_linked = True

    def admitted(self) -> None:
        """Record that this incarnation is a member of the run."""
        self._ever_admitted = True

    def refused(self, code: RejectCode, words: str, newest: int = 0, *, listed: bool = True) -> None:
        """Record that a peer has sent REJECT, or that this node has refused it. `newest`: the incarnation
        that came with it. `listed`: this node has dialled it, as its list says; others can only make it begin
        again.
        """
        self._elsewhere |= code in (RejectCode.SUPERSEDED, RejectCode.IDENTITY)
        if code is RejectCode.BEHIND:
            counts = newest > self._incarnation and (listed or self._may_go_above(newest))
        else:
            counts = listed and (
                code is RejectCode.SUPERSEDED or (code in OUR_FAULT and not self._ever_linked)
            )
        if not counts:
            return
        self._told[code] = words
        if code is RejectCode.BEHIND and newest <= TOLD_MAX:
            self._newest = max(self._newest, newest)
        if code is RejectCode.SUPERSEDED and self._superseded_since is None:
            self._superseded_since = asyncio.get_running_loop().time()
        self._wait()

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()

    def _may_go_above(self, newest: int) -> bool:
        return not self._ever_admitted and self._incarnations_left > 0 and newest <= TOLD_MAX

    def _wait(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._failure_timeout_s, self._judge)

    def _judge(self) -> None:
        told, newest, elsewhere = self._told, self._newest, self._elsewhere
        self._timer, self._told, self._newest, self._elsewhere = None, {}, 0, False
        if RejectCode.SUPERSEDED not in told or self._linked_now():
            self._superseded_since = None
        if self._linked_now():
            return
        if RejectCode.SUPERSEDED in told:
            self._judge_superseded(told[RejectCode.SUPERSEDED])
        elif RejectCode.BEHIND in told and not elsewhere:
            self._judge_behind(newest, told[RejectCode.BEHIND])
        elif not self._ever_linked and (
            ours := [told[code] for code in told if code not in INCARNATION_CODES]
        ):
            self._fail(f"no peer accepts this node: {ours[-1]}", ExitCode.CONFIGURATION)

    def _judge_superseded(self, words: str) -> None:
        assert self._superseded_since is not None
        waited_s = asyncio.get_running_loop().time() - self._superseded_since
        if self._ever_admitted or waited_s >= DEAD_TIMEOUTS * self._failure_timeout_s:
            self._end_old_life(words)
        else:
            self._wait()

    def _judge_behind(self, newest: int, words: str) -> None:
        if self._ever_admitted:
            self._end_old_life(words)
        elif not newest:
            self._fail(
                f"peers know an incarnation of this node that no clock explains: make it a new node, with "
                f"another --state and, over TLS, another certificate ({words})",
                ExitCode.CONFIGURATION,
            )
        elif not self._incarnations_left:
            self._fail(
                f"this node has begun {RESTARTS_MAX} incarnations in a row, and each was behind another one: "
                f"stop the other daemon that has its id, or give one another --state ({words})",
                ExitCode.CONFIGURATION,
            )
        else:
            self._begin_again(newest, words)

    def _end_old_life(self, words: str) -> None:
        sentence = f"this node has been started again elsewhere, so this life of it ends ({words})"
        self._fail(sentence, ExitCode.CONFIGURATION)


# ----------------------------------------------------------------------------
# How often connections were refused or dropped, by reason.


REASONS_MAX: Final = 64  # kinds that are counted apart; there are far fewer
TOLD_KINDS_MAX: Final = 16  # kinds that peers name, whose words may be anything
REASON_CHARACTERS_MAX: Final = 40


class DropCounters(collections.Counter[str]):
    """Counts of drops by reason; what peers invent leaves room for this node's own."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def count(self, reason: str) -> None:
        """Count once more a reason of this node's."""
        if reason in self or len(self) < REASONS_MAX:
            self[reason] += 1

    def count_told(self, how: str, label: str) -> None:
        """Count once more a reason that a peer named; after TOLD_MAX kinds others are "other"."""
        reason = f"{how}: {label}"[:REASON_CHARACTERS_MAX]
        if reason not in self._told:
            if len(self._told) < TOLD_KINDS_MAX:
                self._told.add(reason)
            else:
                reason = f"{how}: other"
        self.count(reason)


# ----------------------------------------------------------------------------
# The log's lines about dropped connections: the same of the same host once a minute.
#
# A peer of another run dials again and again, each time from another port, and there is one mistake to fix.


INTERVAL_S: Final = 60.0
KEPT_MAX: Final = 256  # who varies the words is said as often; the log itself limits that

log = logging.getLogger("p2psgd.net")


class DropLog:
    """The log of the drops of one mesh."""

    def __init__(self) -> None:
        self._said: collections.OrderedDict[tuple[str, str], tuple[float, int]] = collections.OrderedDict()

    def dropped(self, who: str, error: PeerError, now: float) -> None:
        """Log that the connection of `who`, which ends with the address and port it came from, is dropped."""
        more = self._due(who, error, now)
        if more is not None:
            about = {"fields": {"kind": "dropped", "reason": error.label, "address": who}}
            log.warning("dropped %s: %s: %s%s", who, error.label, error, more, extra=about)

    def looked_at(self, address: str, answer: PeerError, now: float) -> None:
        """Log that a doctor has asked, and its connection ends with the answer: no fault of anybody."""
        more = self._due(address, answer, now)
        if more is not None:
            about = {"fields": {"kind": "doctor", "address": address}}
            host = address.rpartition(":")[0]
            log.info("p2psgd doctor on %s looked at this node%s", host, more, extra=about)

    def _due(self, who: str, error: PeerError, now: float) -> str | None:
        """Return None if the same was logged lately, else how often it was held back, for the end of the
        sentence.
        """
        key = (who.rpartition(":")[0], str(error))
        last, held_back = self._said.get(key, (-INTERVAL_S, 0))
        if now - last < INTERVAL_S:
            self._said[key] = (last, held_back + 1)
            return None
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > KEPT_MAX:
            self._said.popitem(last=False)
        return f" ({held_back} more since it was said last)" if held_back else ""
