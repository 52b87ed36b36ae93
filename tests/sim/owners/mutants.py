"""Bugs put into the core of mode `owners` on purpose, as in mutants.py of the first family."""

from __future__ import annotations

from typing import Final

from p2psgd.core import peer, receive, send, snapshot_install, state
from p2psgd.core.owners import aggregator, barrier, channel, covers, owners, relay_trees
from p2psgd.node import backpressure, stopping
from p2psgd.wire import update
from tests.sim.mutants import Edit, Mutant

A: Final = "Aggregator."
B: Final = "Barrier."
C: Final = "Channel."
O: Final = "Owners."  # noqa: E741
IF_PUBLISHED: Final = "if self._is_idle:"
OWNERS_MUTANTS: Final[dict[str, Mutant]] = {
    # the channel
    "not-sent-again-on-a-new-link": (Edit(channel, C + "resend", "self.sent = 0", "pass"),),
    "counted-as-sent-without-credit": (
        Edit(
            channel,
            C + "unsent",
            "yield each\n            self.sent = each.number",
            "self.sent = each.number\n            yield each",
        ),
    ),
    "last-one-covered-kept": (
        Edit(channel, C + "cover", "self.pending[0].number <= number", "self.pending[0].number < number"),
    ),
    "next-one-taken-for-covered": (
        Edit(
            channel, C + "cover", "self.pending[0].number <= number", "self.pending[0].number <= number + 1"
        ),
    ),
    "redealt-again-and-again": (Edit(channel, C + "to_redeal", "if not each.redealt", ""),),
    "opposite-is-the-same": (Edit(channel, "Pending.opposite", "self.words ^ np.uint32(1)", "self.words"),),
    "opposite-of-half-the-size": (
        Edit(
            channel,
            "Pending.opposite",
            "seen=False, own=False)",
            "seen=False, own=False, magnitude=max(1, self.magnitude // 2))",
        ),
    ),
    # contributing
    "never-redealt": (Edit(owners, O + "_redeal", "in channel.to_redeal():", "in ():"),),
    "redealt-only-when-out-of-the-view": (
        Edit(
            owners,
            O + "_redeal",
            "(owner in self._members and self._is_usable(owner, now))",
            "owner in self._members",
        ),
    ),
    "given-to-who-is-gone": (Edit(owners, O + "_usable_places", " if self._is_usable(owner, now)]", "]"),),
    "redealt-is-not-marked": (Edit(owners, O + "_redeal", "each.redealt = True", "pass"),),
    "opposite-not-contributed": (Edit(owners, O + "_cover", "if each.redealt:", "if False:"),),
    "cover-in-a-snapshot-not-looked-for": (
        Edit(owners, O + "replaced", "in list(self.channels.values()):", "in ():"),
    ),
    "covers-of-updates-not-looked-at": (
        Edit(receive, "Receiver.update", "self.covered(origin, now)", "pass"),
    ),
    "trainer-never-waits": (
        Edit(
            backpressure,
            "Backpressure.regulate",
            "and owners.full",
            "and False",
        ),
    ),
    "redealt-kept-without-limit": (
        Edit(
            owners,
            O + "_redeal",
            "while sum(channel.redealt_bytes for channel in redealt) > REDEALT_BYTES_MAX:",
            "while False:",
        ),
    ),
    # the trainer's weights
    "own-changes-not-taken-off": (Edit(owners, O + "_take_off", "self._deliver(", "id, ("),),
    "redealt-seen-twice": (
        Edit(
            owners,
            O + "_redeal",
            "each.seen = False",
            "pass",
        ),
    ),
    "opposite-seen": (Edit(channel, "Pending.opposite", "seen=False", "seen=True"),),
    "own-part-never-covered": (Edit(owners, O + "publish", "self._cover(own, own.last, now)", "pass"),),
    # owning
    "publishes-though-its-log-is-full": (
        Edit(owners, O + "publish", "if self._retention.full:", "if False:"),
    ),
    "duplicates-added": (
        Edit(owners, O + "take", "if header.number <= self.received.get(origin, 0):", "if False:"),
    ),
    "own-part-not-added": (
        Edit(owners, O + "_append", "self._add(owner, part.words, part.magnitude, part.rate)", "pass"),
    ),
    "covers-one-too-many": (
        Edit(
            owners,
            O + "publish",
            "{origin: self.received[origin] for",
            "{origin: self.received[origin] + 1 for",
        ),
    ),
    "cover-in-the-last-update": (
        Edit(
            owners,
            O + "publish",
            "self._publish(magnitude, words, cover)",
            "self._publish(magnitude, words, every if place == len(parts) else ())",
        ),
        Edit(owners, O + "publish", "parts = [", "every = cover\n        parts = ["),
    ),
    "moves-before-it-covers": (Edit(owners, O + "_move", IF_PUBLISHED, "if True:"),),
    "moves-without-publishing": (
        Edit(owners, O + "_move", "self.publish(now)", "pass"),
        Edit(owners, O + "_move", IF_PUBLISHED, "if True:"),
    ),
    "contributions-overtake-updates": (
        Edit(owners, O + "push", "or self._lacks_update(peer, each.after, now)", ""),
    ),
    "added-up-for-others-dropped": (
        Edit(
            owners,
            O + "_move",
            "self._contribute_all(self.aggregator.move(self._range), now)",
            "self.aggregator.move(self._range)",
        ),
    ),
    "range-kept-at-the-end": (Edit(owners, O + "hand_over", "self._left = True", "pass"),),
    "leaves-before-all-is-covered": (
        Edit(stopping, "_cover", "replica.owners.waits_to_leave and", "False and"),
    ),
    "residual-not-reduced": (
        Edit(aggregator, A + "_take_due", "np.where(negative, -sent, sent)", "np.where(negative, -sent, 0)"),
    ),
    "outside-values-dropped": (
        Edit(aggregator, A + "add", "in (*words[:first].tolist(), *words[last:].tolist()):", "in ():"),
    ),
    "outside-values-published-again": (
        Edit(aggregator, A + "_take_outside", "self._outside.clear()", "pass"),
    ),
    "outside-values-in-both-places": (
        Edit(aggregator, A + "move", "self._outside.pop(index)", "self._outside[index]"),
    ),
    "kept-part-of-a-range-given-away": (
        Edit(
            aggregator,
            A + "move",
            "self.residual[kept[0] - begin : kept[1] - begin] = 0",
            "pass",
        ),
    ),
    "exact-updates-without-their-lowest-bit": (
        Edit(update, "by_digits", "in range(largest):", "in range(1, largest):"),
    ),
    # few owners, relays, and what a STATUS leaves out
    "owners-seen-differently": (
        Edit(
            owners,
            O + "_enter_view",
            "owner_count(len(self._members), self._state.spec.weights)",
            "owner_count(len(self._members), self._state.spec.weights) - (me.node % 2)",
        ),
    ),
    "applied-and-not-passed-on": (
        Edit(send, "LogSender.pass_on", "if origin in peer.cursors:", "if False:"),
    ),
    "trees-seen-differently": (
        Edit(
            relay_trees,
            "RelayTrees._position",
            "members=len(self._view.members)",
            "members=len(self._view.members) + self._cluster.me.node % 2",
        ),
    ),
    "two-members-at-one-position": (
        Edit(relay_trees, "position_of", "% (members - 1) + 1", "% members + 1"),
    ),
    "relays-go-on-after-a-new-view": (Edit(send, "LogSender.follow", "peer.drop_cursor(origin)", "pass"),),
    "relays-stay-as-they-were": (
        Edit(
            send,
            "LogSender.follow",
            "if origin == self._state.me or self._state.log.trimmed_to(origin) <= after:",
            "if origin == self._state.me:",
        ),
    ),
    "rows-that-a-status-leaves-out-lost": (
        Edit(receive, "Receiver._completed", "{**peer.status, **status.rows}", "status.rows"),
    ),
    "rows-that-have-changed-left-out": (
        Edit(peer, "StatusTables.since", "before.rows.get(origin) != row", "origin not in before.rows"),
    ),
    # what updates cover
    "row-of-all-is-of-nobody": (Edit(covers, "Covers.note", "numbers.add_to_all(every)", "pass"),),
    "row-of-all-beside-others": (Edit(covers, "Covers.note", "row.more - every", "row.more"),),
    "row-of-all-instead-of-none": (
        Edit(covers, "shortened", "more.get(place, 0) != every", "more.get(place, every) != every"),
    ),
    "cover-counted-from-zero": (Edit(covers, "Covers.rows", "number - numbers[each] for", "number for"),),
    "cover-not-added-up": (
        Edit(
            covers,
            "Covers.note",
            "numbers.add(numbers.places[row.place], row.more - every)",
            "numbers._beyond[numbers.places[row.place]] = row.more - numbers._every",
        ),
    ),
    "covers-not-taken-with-a-snapshot": (
        Edit(snapshot_install, "Adoption.finish", "covers=intake.covers", "covers=None"),
    ),
    "covers-of-updates-applied-again-lost": (
        Edit(snapshot_install, "Adoption._apply_next", "if header.cover:", "if False:"),
    ),
    "covers-not-in-checkpoints": (Edit(state, "State.restore", "Covers(restored.covers)", "Covers()"),),
    # rounds
    "round-published-by-the-first": (
        Edit(barrier, B + "complete", "last = min(ended, default=", "last = max(ended, default="),
        Edit(barrier, B + "is_due", "if self._finds_missing(now):", "if False:"),
    ),
    "round-1-waits-for-no-trainer": (
        Edit(barrier, B + "begun", "elif not self._is_absent() or", "elif True or"),
    ),
    "late-member-waited-for": (Edit(barrier, B + "tick", "self._left_out.update(waiting)", "pass"),),
    "member-without-a-trainer-waited-for": (
        Edit(
            barrier,
            B + "_is_taking_part",
            "self._has_trainer(member)\n        and (self._is_first or self._takes_part(member))\n"
            "        and member not in self._left_out\n",
            "True\n",
        ),
    ),
    "what-comes-between-rounds-is-never-published": (
        Edit(barrier, B + "is_due", " or (came and not self.expected(now))", ""),
    ),
    "next-round-opened-at-once": (
        Edit(owners, O + "_open_round", "self._find_awaited(now) is not None", "False"),
    ),
    "round-complete-with-its-first-update": (
        Edit(owners, O + "publish", "if place == len(parts):", "if place == 1:"),
    ),
    "nothing-to-give-is-not-said": (
        Edit(
            owners,
            O + "share",
            "parts = share or [self._nothing(now)]",
            "parts = share\n        if not parts:\n            continue",
        ),
        Edit(owners, O + "_end_round", "for owner in self._owners:", "for owner in ():"),
    ),
    "new-owner-not-told-of-the-round": (
        Edit(owners, O + "_end_round", "for owner in self._owners:", "for owner in ():"),
    ),
    "owner-that-is-gone-waited-for": (
        Edit(owners, O + "_awaits", "not complete and self._is_usable(owner, now)", "not complete"),
    ),
    "threshold-follows-from-who-came-last": (
        Edit(
            aggregator,
            A + "_count_what_came",
            "np.fmin(self._least[came > 0], math.log2(magnitude))",
            "math.log2(magnitude)",
        ),
    ),
    "rule-follows-gradients-as-they-came": (
        Edit(
            owners,
            O + "_add_gradients",
            "sorted(self._gradients, key=lambda each: each[0])",
            "self._gradients",
        ),
    ),
}
