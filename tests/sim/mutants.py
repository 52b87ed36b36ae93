"""Bugs put into the core on purpose: each must be found, or the simulator is worth nothing.

A mutant replaces text in the source of a function and puts the result in its place for as long as it is
wanted. Text that is not there exactly once is an error: who changes the core mends the mutant.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from p2psgd.core import (
    acks,
    checkpoint,
    frontier,
    membership,
    paxos,
    pending_changes,
    quarantine,
    readiness,
    receive,
    replica,
    retention,
    scrub,
    send,
    snapshot_feed,
    snapshot_fetch,
    snapshot_install,
    snapshot_serve,
    state,
    status,
    update_log,
)
from p2psgd.node import backpressure
from p2psgd.wire import update
from tests.sim import daemon


@dataclass(frozen=True, slots=True)
class Edit:
    """In function `path` of `module`: `old` becomes `new`."""

    module: ModuleType
    path: str
    old: str
    new: str


R: Final = "Replica."
UNCHECKED_DIGEST: Final = Edit(receive, "Receiver.update", "if state.digest_", "if False and state.digest_")
ANY_SEQUENCE: Final = (
    Edit(frontier, "Frontier.advance", "assert sequence ==", "assert True or sequence =="),
    Edit(update_log, "UpdateLog.append", "assert sequence ==", "assert True or sequence =="),
)
Mutant = tuple[Edit, ...]
MUTANTS: Final[dict[str, Mutant]] = {
    # applying
    "shard-counts-refused": (Edit(receive, "Receiver.update", "spec.coordinates", "spec.weights"),),
    "shard-counts-not-in-snapshots": (
        Edit(snapshot_fetch, "SnapshotFetch.begin", "spec.coordinates", "spec.weights"),
    ),
    "duplicates-applied": (
        Edit(receive, "Receiver.update", "if header.sequence <= applied:", "if False:"),
        UNCHECKED_DIGEST,
        *ANY_SEQUENCE,
    ),
    "gap-in-sequence-accepted": (
        Edit(receive, "Receiver.update", "if header.sequence > applied + 1:", "if False:"),
        UNCHECKED_DIGEST,
        *ANY_SEQUENCE,
    ),
    "missing-frontier-key-not-0": (
        Edit(frontier, "Frontier.sequence", "0 if row", "1 if row"),
        *ANY_SEQUENCE,
    ),
    "digest-unchecked": (UNCHECKED_DIGEST,),
    "checksum-unchecked": (Edit(update, "parse_update", "!= checksum:", "== -1:"),),
    "repairs-not-delivered": (
        Edit(
            receive,
            "Receiver.update",
            "frame_bytes = self._applier.apply(origin, header, words, body)",
            "frame_bytes = self._applier.apply(origin, header, words, body)\n"
            "    origin == peer.origin or self._out._effects.pop()",
        ),
    ),
    "running-digest-wrong": (
        Edit(
            state,
            "QuantizedWeights.apply",
            "(self.digest + contribution) % 2**64",
            "(self.digest ^ contribution) % 2**64",
        ),
    ),
    "effect-dropped": (Edit(send, "Outbound.take", "return effects", "return effects[:1] + effects[2:]"),),
    "illegal-transition": (
        Edit(
            readiness,
            "JoinProgress._try_barrier",
            "if self.state is not Readiness.BARRIER:",
            "if False:",
        ),
    ),
    "incarnation-reused": (
        Edit(daemon, "Daemon.__init__", "disk.incarnations += 1", "disk.incarnations = 1"),
    ),
    # sending and asking
    "no-push-after-drain": (Edit(replica, R + "_go_on_with", "self.log_sender.push(peer, now)", "pass"),),
    "credit-never-given-back": (Edit(send, "Outbound.refill", "peer.credit = self.credit_bytes", "pass"),),
    "credit-not-spent": (Edit(send, "Outbound._spend", "peer.credit -= frame_bytes", "pass"),),
    "need-ignored": (Edit(send, "LogSender.serve", "if need.first <= last:", "if False:"),),
    "need-served-short": (Edit(send, "LogSender.serve", "last = min(", "last = -1 + min("),),
    "no-ask-after-status": (Edit(receive, "Receiver.ask_for_all", "if lacking and not", "if False and not"),),
    "asked-while-the-log-is-full": (
        Edit(receive, "Receiver.ask_for_all", "or not self._make_room(self._lacked_bytes)", ""),
    ),
    "asked-until-the-log-is-full-to-the-byte": (
        Edit(
            receive,
            "Receiver.ask_for_all",
            "not self._make_room(self._lacked_bytes)",
            "self._retention.fullness >= 1.0",
        ),
    ),
    "old-incarnations-not-repaired": (
        Edit(
            receive,
            "Receiver.ask_for_all",
            "if lacking and not",
            "if lacking and origin.node != self._cluster.me.node and not",
        ),
    ),
    "lively-origin-relied-on": (
        Edit(receive, "Receiver._expected_unasked", "now - peer.last_progress", "now - peer.last_seen"),
    ),
    # trimming
    "trimmed-early": (Edit(retention, "Retention.trim", "return stable_by(floors, origin)", "return 2**64"),),
    "trimmed-by-a-majority": (
        Edit(
            retention,
            "Retention.trim",
            "return stable_by(floors, origin)",
            "return sorted(acks.applied(each, origin) for each in [*others, others[0]])[len(others) // 2]"
            " if others else 0",
        ),
    ),
    "trimmed-by-who-is-linked": (
        Edit(
            acks,
            "Acknowledgements.floors_of",
            "if member == self._me:",
            "if member == self._me or not self.applied(member, self._me):",
        ),
    ),
    "acks-of-an-old-life-counted": (
        Edit(
            acks,
            "Acknowledgements.applied",
            "known = self._known.get(member, _NOTHING)",
            "known = max((known for life, known in self._known.items() if life.node == member.node),"
            " key=lambda known: known.applied.get(origin, 0), default=_NOTHING)",
        ),
        Edit(acks, "Acknowledgements.keep", "self._known.keys() - incarnations", "()"),
    ),
    "sent-snapshot-counted-as-acknowledged": (
        Edit(
            snapshot_serve,
            "SnapshotServer._feed",
            "self._counters.snapshots_given += 1",
            "self._counters.snapshots_given += 1\n"
            "    rows = self._state.frontier.rows()\n"
            "    given = {Origin(row.node, row.incarnation): row for row in rows}\n"
            "    self._cluster.acks.on_status(peer.origin, given, 0, {}, now)",
        ),
    ),
    "bridged-more-than-all-have": (
        Edit(
            status,
            "LeastTold.of",
            "self._least[origin] = 0 if row is None else row.sequence",
            "pass",
        ),
    ),
    "trimmed-before-ready": (
        Edit(receive, "Receiver._make_room", "self._node.ready and self._acks", "self._acks"),
    ),
    "log-never-trimmed": (Edit(update_log, "UpdateLog._shed", "while heads and", "while False and"),),
    "trainer-never-stalls": (
        Edit(backpressure, "Backpressure.regulate", "and self.held_up", "and not self._replica.ready"),
    ),
    # joining
    "admission-without-barrier": (
        Edit(readiness, "JoinProgress._try_barrier", "passed = not self.absent", "passed = True"),
    ),
    "ready-though-it-was-out": (
        Edit(readiness, "JoinProgress.look", "if admitted_in != self._since:", "if self._since is None:"),
    ),
    "ready-before-it-has-all": (
        Edit(readiness, "JoinProgress.look", "and self._has_all(view, peers, frontier)", ""),
    ),
    "snapshot-without-log": (
        Edit(snapshot_feed, "SnapshotFeed._tail", "for row in rows:", "for row in ():"),
    ),
    "snapshot-without-own-updates": (
        Edit(
            snapshot_serve,
            "SnapshotServer._acknowledged_without",
            "return lambda origin: stable_by(",
            "return lambda origin: 2**64 if origin == self._cluster.me else stable_by(",
        ),
    ),
    "snapshot-without-what-the-unlinked-lack": (
        Edit(
            snapshot_serve,
            "SnapshotServer._acknowledged_without",
            "if member != asker",
            "if member != asker and member in self._cluster.peers",
        ),
    ),
    "snapshot-without-what-past-incarnations-made": (
        Edit(
            snapshot_serve,
            "SnapshotServer._acknowledged_without",
            "return lambda origin: stable_by(",
            "return lambda origin: 2**64 if origin not in members else stable_by(",
        ),
    ),
    "snapshot-with-what-all-have": (
        Edit(
            snapshot_serve,
            "SnapshotServer._acknowledged_without",
            "return lambda origin: stable_by(",
            "return lambda origin: 0 * stable_by(",
        ),
    ),
    "snapshot-before-the-barrier": (
        Edit(snapshot_fetch, "SnapshotFetch.tick", "if not self._joining.passed:", "if False:"),
    ),
    "snapshot-unverified": (
        Edit(snapshot_install, "SnapshotIntake.chunk", "and self._digest_left:", "and False:"),
    ),
    "snapshot-at-a-loss": (
        Edit(state, "State.lost_by", "return sum(", "return 0 * sum("),
        Edit(
            snapshot_install,
            "Adoption.turn",
            "while self._sequence(origin) <",
            "while self._state.log.trimmed_to(origin) <= self._sequence(origin) <",
        ),
    ),
    "exclusives-not-applied-again": (
        Edit(
            snapshot_install, "Adoption.turn", "while self._sequence(origin) < frontier", "while 0 > frontier"
        ),
    ),
    "adopted-before-all-is-applied-again": (
        Edit(snapshot_install, "Adoption.turn", "return False", "return True"),
    ),
    "copy-misses-updates": (Edit(scrub, "ConsistentCopy.note", "codec.apply_coordinates(", "id, ("),),
    # agreeing
    "votes-forgotten": (Edit(daemon, "Daemon.__init__", "votes=disk.votes", "votes=NO_VOTES"),),
    "promise-not-held-back": (
        Edit(paxos, "Consensus._answer", "if self._revision <= self._saved:", "if True:"),
    ),
    "evicted-without-a-quorum": (
        Edit(
            membership,
            "Membership._is_quorum",
            "return self.view.quorum(nodes, self._two_nodes)",
            "return True",
        ),
    ),
    "accepted-value-ignored": (
        Edit(paxos, "Consensus._count_promise", "attempt.value or attempt.proposal", "attempt.proposal"),
    ),
    "forbidden-admitted": (
        Edit(
            pending_changes, "PendingChanges.next_view", "| self.leaving | view.forbidden", "| self.leaving"
        ),
        Edit(replica, "Replica._open_link", "in self.membership.view.forbidden", "in ()"),
        Edit(replica, "Replica._bar", "in self.membership.view.forbidden", "in ()"),
    ),
    "never-evicted": (Edit(membership, "Membership.request_eviction", "if node in", "if False and node in"),),
    # disks and memory
    "own-updates-not-restored": (Edit(state, "State.restore", "in restored.own:", "in ():"),),
    "checkpoint-without-log": (
        Edit(checkpoint, "Checkpoints._order", "tail(self._saved_by_others)", "tail(lambda origin: 2**64)"),
    ),
    "scrub-asleep": (Edit(scrub, "SliceScanner.tick", "if now < self.scrub_due:", "if True:"),),
    "scrub-misses-updates": (
        Edit(scrub, "Scrub.note", "self._digest = (self._digest + part) % 2**64", "pass"),
    ),
    "never-mends": (Edit(quarantine, "Quarantine.checkpoint_read", "if event.found is None:", "if True:"),),
    "quarantine-keeps-sending": (
        Edit(
            send,
            "LogSender.push",
            "if self._node.state in DAMAGED:",
            "if False:",
        ),
    ),
    "mended-without-verifying": (
        Edit(
            quarantine,
            "Rebuild._catch_up",
            "codec.apply_coordinates(",
            "(0, 0) if header.sequence % 3 else codec.apply_coordinates(",
        ),
        Edit(
            quarantine,
            "Rebuild.advance",
            "return self._scrub.advance(SLICE)",
            "return None if self._scrub.advance(SLICE) is None else True",
        ),
    ),
    "mended-to-the-checkpoint": (
        Edit(quarantine, "Rebuild._catch_up", "for origin in frontier:", "for origin in ():"),
    ),
}


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a mutant in place of the real code."""
    originals: list[tuple[Any, str, Any]] = []
    try:
        for edit in mutant:
            _apply(edit, originals)
        yield
    finally:
        for owner, attribute, original in reversed(originals):
            setattr(owner, attribute, original)


def _apply(edit: Edit, originals: list[tuple[Any, str, Any]]) -> None:
    owner: Any = edit.module
    *way, attribute = edit.path.split(".")
    for step in way:
        owner = getattr(owner, step)
    original = getattr(owner, attribute)
    source = _SOURCES.get(original) or textwrap.dedent(inspect.getsource(original))
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.path} has {edit.old!r} {source.count(edit.old)} times, not once")
    source = source.replace(edit.old, edit.new)
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<mutant of {edit.path}>", "exec", flags), vars(edit.module), made)
    _SOURCES[made[attribute]] = source
    importers = [
        module
        for name, module in sys.modules.items()
        if name.startswith("p2psgd.") and vars(module).get(attribute) is original
    ]
    for place in {owner, *importers}:
        originals.append((place, attribute, inspect.getattr_static(place, attribute)))  # or static no more
        setattr(place, attribute, made[attribute])


_SOURCES: Final[dict[Any, str]] = {}  # of mutated functions, which have no file
