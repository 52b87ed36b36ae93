"""Bugs put into the core's ring on purpose, as in mutants.py of the first family."""

from __future__ import annotations

from typing import Final

from p2psgd.core import receive
from p2psgd.core.ring import chunks, contribution, dense, formation, reduce, results, ring, sparse, stragglers
from tests.sim.mutants import Edit, Mutant

S: Final = "SparseRounds."
D: Final = "DenseRounds."
ANY_DIGEST: Final = Edit(
    ring,
    "Ring._start",
    "elif self._state.lattice.digest != digest or not self.rounds.fits(first):",
    "elif False:",
)
RING_MUTANTS: Final[dict[str, Mutant]] = {
    # beginning
    "begun-while-a-member-is-behind": (
        Edit(formation, "Formation._unlike", "if not self._is_same(each)", "if False"),
        ANY_DIGEST,
    ),
    "runs-without-being-ready": (Edit(ring, "Ring._is_fit", "self._node.ready and", ""),),
    "generation-number-used-again": (
        Edit(ring, "Ring._try_to_begin", "number = 1 + max(", "number = max(1, "),
    ),
    "first-round-by-the-head-alone": (
        Edit(
            ring,
            "Ring._try_to_begin",
            "max(self.rounds.done, self._ring_states.rounds(view))",
            "self.rounds.done",
        ),
    ),
    # stopping
    "goes-on-after-a-link-was-lost": (
        Edit(ring, "Ring.unlink", "if self.generation is not None and peer in", "if False and peer in"),
    ),
    "goes-on-in-another-view": (
        Edit(ring, "Ring.look", "self.stop(StopReason.VIEW, now, tell=False)", "pass"),
    ),
    "goes-on-though-others-stopped": (
        Edit(ring, "Ring._leave_if_told", "self.stop(StopReason.TOLD, now)", "pass"),
    ),
    "others-parts-kept": (Edit(sparse, S + "stop", "self._given.clear()", "pass"),),
    "own-share-dropped-at-stop": (Edit(sparse, S + "stop", "self._waiting.clear()", "self._own.drop()"),),
    "follower-stays-silent": (
        Edit(sparse, S + "stop", "self._generation, self._followed = None, False", "self._generation = None"),
        Edit(
            sparse,
            S + "_try_to_complete",
            "self._followed = False",
            "pass",
        ),
    ),
    # a round
    "completed-without-one-share": (
        Edit(
            sparse,
            S + "_try_to_complete",
            "not all(self._has_share_of(member) for member in generation.order)",
            "sum(self._has_share_of(member) for member in generation.order) < len(generation.order) - 1",
        ),
        Edit(
            sparse,
            S + "_try_to_complete",
            "in round_given[member].parts:",
            "in getattr(round_given.get(member), 'parts', ()):",
        ),
    ),
    "passed-on-to-whose-it-is": (Edit(sparse, S + "_enqueue", "if member != generation.right:", "if True:"),),
    "not-passed-on-when-credit-is-short": (Edit(sparse, S + "drained", "self._push()", "pass"),),
    "delivered-in-order-of-arrival": (
        Edit(sparse, S + "_try_to_complete", "in sorted(generation.order):", "in round_given:"),
    ),
    "own-share-delivered": (
        Edit(
            receive,
            "Applier.apply",
            "self._tally.own_bytes += len(frame)",
            "self._out.emit(Deliver(body))",
        ),
    ),
    "opened-before-delivery": (
        Edit(
            sparse,
            S + "_try_to_complete",
            "round_given, self._given = self._given, {}",
            "round_given, self._given = self._given, {}\n"
            "    self._own.drop()\n"
            "    self._followed = False\n"
            "    self._on_complete(Completed(self.done + 1, contributors=1, own=True), now)",
        ),
    ),
    "opened-while-idle": (Edit(ring, "Ring._open_round", "(self.active and self.running)", "self.active"),),
    # after a failure
    "repaired-while-running": (
        Edit(receive, "Receiver.update", "if self._ring_life.state in IN_STEP:", "if False:"),
        Edit(receive, "Receiver.ask_for_all", "self._ring_life.state in IN_STEP or", ""),
    ),
    "share-given-twice": (
        Edit(
            sparse,
            S + "settle",
            "if self._own.round and self._own.is_taken",
            "if False and self._own.is_taken",
        ),
        Edit(contribution, "OwnContribution.left", "if part.header.sequence > applied", ""),
    ),
    "own-share-not-repaired": (
        Edit(
            receive,
            "Receiver._check_own",
            "if given is None:",
            "if True:",
        ),
    ),
    "silent-members-stay": (
        Edit(stragglers, "StragglerVotes._matters", 'matters["silent", member, view.number] =', "_ ="),
    ),
    # dense rounds
    "dense-share-dropped-at-stop": (
        Edit(
            dense,
            D + "stop",
            "self._generation = self._round = self._outgoing = None",
            "self._generation = self._round = self._outgoing = None; self._drop_share()",
        ),
    ),
    "sums-kept-over-generations": (
        Edit(
            dense,
            D + "stop",
            "self._generation = self._round = self._outgoing = None",
            "self._generation = self._outgoing = None",
        ),
        Edit(
            dense,
            D + "begin",
            "self._begin_round(generation, now)",
            "self._round or self._begin_round(generation, now)",
        ),
    ),
    "dense-frames-of-old-generations-accepted": (
        Edit(
            dense,
            D + "_is_current",
            "generation is not None and tag == (generation.left, generation.view, generation.number)",
            "generation is not None and peer.origin == generation.left",
        ),
        Edit(formation, "Formation._unlike", "if busy:", "if False:"),
    ),
    "all-members-counted": (Edit(dense, D + "_complete", "+ (not current.empty)", "+ 1"),),
    "mean-over-all-members": (
        Edit(
            chunks,
            "NextWeights.take",
            "np.float32(1 / contributors)",
            "np.float32(1 / (contributors + 1))",
        ),
    ),
    "one-half-for-all-sums": (
        Edit(dense, "DenseRound.__init__", "self.sums = number % 2", "self.sums = 0"),
        Edit(dense, D + "_finish", "own, result.number % 2)", "own, 0)"),
        Edit(results, "Results._produce", "sums[kept.number % 2]", "sums[0]"),
        Edit(results, "Results.hear_chunk", "sums[result.number % 2]", "sums[0]"),
    ),
    "result-given-from-the-other-half": (
        Edit(results, "Results._produce", "sums[kept.number % 2]", "sums[1 - kept.number % 2]"),
    ),
    "share-counted-twice-after-a-result": (
        Edit(dense, D + "_hear_chunk", "own=self._own_used)", "own=False)"),
        Edit(dense, D + "_catch_up", "if done <= self._done:", "if True:"),
    ),
    "share-kept-though-in-the-snapshot": (Edit(dense, D + "_catch_up", "if self._own_used:", "if False:"),),
    "summed-from-another-place": (
        Edit(
            reduce,
            "Reduction._add",
            "self._shares[start:end], sums)",
            "2 * self._shares[start:end], sums)",
        ),
        Edit(
            reduce,
            "Reduction.take",
            "self._shares[start:end], self._sums",
            "2 * self._shares[start:end], self._sums",
        ),
    ),
    "owner-keeps-what-float16-cannot-hold": (
        Edit(reduce, "Reduction._has_added", "if self._half:", "if False:"),
    ),
    "mismatch-not-refused": (Edit(dense, D + "_fits", "if own == other:", "if True:"),),
    "half-a-share-of-a-trainer-that-left": (
        Edit(dense, D + "activate", "if self._own.all and not self._own.whole:", "if False:"),
    ),
    "rounds-numbered-without-their-view": (
        Edit(dense, D + "_finish", "complete(view=result.view,", "complete(view=1,"),
    ),
}
