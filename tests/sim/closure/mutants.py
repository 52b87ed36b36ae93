"""Bugs put into the core of mode `closure` on purpose, as in mutants.py of the first family."""

from __future__ import annotations

from typing import Final

from p2psgd.core.closure import closure, portions, results, scales, sums
from tests.sim.mutants import Edit, Mutant

C: Final = "Closure."
D: Final = "Dealer."
T: Final = "TableSums."
CLOSURE_MUTANTS: Final[dict[str, Mutant]] = {
    # each portion counts once
    "second-answer-granted-too": (
        Edit(portions, D + "report", "if not (others | holder.added) >> portion & 1:", "if True:"),
    ),
    "table-of-another-set-believed": (
        Edit(
            closure,
            C + "_hear_table",
            "if sets[table.members.index(self.me)] != seat.added:",
            "if False:",
        ),
    ),
    "table-kept-though-the-sum-changes": (Edit(closure, C + "_answer", "self.sums = None", "pass"),),
    "empty-sum-given": (
        Edit(
            sums,
            T + "__init__",
            "zip(table.members, table.sets, strict=True) if portions]",
            "zip(table.members, table.sets, strict=True)]",
        ),
    ),
    # the sums
    "piece-added-twice": (
        Edit(sums, "Pull.accept", "if offset != self.next or offset + count > self.asked:", "if False:"),
    ),
    "total-given-before-it-is-whole": (
        Edit(sums, T + "serve", "if self._added[piece] == self._needed:", "if self._added[piece]:"),
    ),
    # limits
    "limits-never-corrected": (Edit(scales, "corrected_limits", "if not wrong.any():", "if True:"),),
    "limits-corrected-by-the-dealers-own": (
        Edit(portions, D + "report", "np.maximum(self.exponents, standing.exponents)", "standing.exponents"),
    ),
    "result-without-its-exponents": (
        Edit(results, "ResultLog.limits_after", "result.exponents)", "result.task.limits)"),
    ),
    # nobody is waited for
    "lost-members-portions-kept": (Edit(portions, D + "lose", "self.holders.pop(member, None)", "pass"),),
    "results-not-fetched": (Edit(closure, C + "_begin_download", "if not usable:", "if True:"),),
}
