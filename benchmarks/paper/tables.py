"""The paper's tables 2, 3 and 4 beside what was measured, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from statistics import mean
from typing import Final

from benchmarks.pages import table
from benchmarks.paper.cases import CASES, NODE_COUNTS, OWN_RESIDUAL, SEEDS, SIZES, SUM_TAUS, Case
from benchmarks.paper.figures import Figures

Measured = Mapping[Case, Figures]

# [Strom 2015], tables 2, 3 and 4: nodes, frames/s, speed-up, relative reduction of the word error rate;
PAPER_NODES: Final = (
    ("1", "10,000", "1", "0 %"),
    ("5", "43,000", "4.3", "1.6 %"),
    ("10", "88,000", "8.7", "1.5 %"),
    ("20", "171,000", "17", "1.6 %"),
    ("40", "331,000", "33", "1.6 %"),
    ("80", "547,000", "54", "1.8 %"),
)
# tau, KB for each mini-batch, compression, reduction;
PAPER_TAUS: Final = (
    ("2", "210", "278", "1.8 %"),
    ("4", "69", "846", "1.6 %"),
    ("6", "33", "1,770", "1.1 %"),
    ("9", "15", "3,893", "0.2 %"),
    ("12", "7.8", "7,487", "-0.5 %"),
    ("15", "4.5", "12,978", "-1.9 %"),
)
# model, weights in millions, compression, reduction.
PAPER_SIZES: Final = (
    ("5 hidden layers", "14.6", "846", "1.6 %"),
    ("8 hidden layers", "21.7", "998", "4.2 %"),
    ("5 layers, 2x size", "23.7", "1,436", "2.8 %"),
    ("5 layers, 3x size", "48.8", "2,871", "4.1 %"),
)
# (compression at least, points lost at most, own residual) at four nodes.
WANTED: Final = ((350.0, 0.5, False), (1000.0, 2.0, False), (1000.0, 0.1, True))
NONE: Final = ""


def table_of_nodes(measured: Measured) -> str:
    """Table 2."""
    head = ("nodes", "seeds", "accuracy, %", "points lost", "compression", "samples/s")
    paper = ("paper: nodes", "frames/s", "speed-up", "WER reduction")
    rows = [
        (
            f"{nodes}" if nodes else "plain SGD",
            seeds_words(measured, case),
            accuracy_words(measured, case),
            loss_words(measured, case) if nodes else NONE,
            ratio_words(measured, case),
            _mean((row.samples / row.training_s for row in runs(measured, case)), 0),
        )
        for nodes in (0, *NODE_COUNTS)
        for case in [Case(nodes=nodes)]
    ]
    return _beside((head, *rows), (paper, *PAPER_NODES))


def table_of_taus(measured: Measured) -> str:
    """Table 3."""
    head = ("tau", "seeds", "KB/mini-batch", "compression", "on the sockets", "weights/index", "bits/index")
    paper = ("paper: tau", "KB/mini-batch", "compression", "WER reduction")
    rows = []
    for sum_tau in SUM_TAUS:
        case = Case(nodes=4, sum_tau=sum_tau)
        found = runs(measured, case)
        cells = (
            f"{sum_tau:g}",
            seeds_words(measured, case),
            _mean((4e-3 * row.weights / row.ratio for row in found if row.ratio), 2),
            ratio_words(measured, case),
            _mean((row.socket_ratio for row in found), 0),
            _mean((row.weights_per_index for row in found), 0),
            _mean((row.bits_per_index for row in found), 2),
            accuracy_words(measured, case),
            loss_words(measured, case),
        )
        rows.append(cells)
    return _beside(((*head, "accuracy, %", "points lost"), *rows), (paper, *PAPER_TAUS))


def table_of_sizes(measured: Measured) -> str:
    """Table 4."""
    head = ("model", "weights, M", "seeds", "compression", "accuracy, %", "plain SGD, %", "points lost")
    paper = ("paper: model", "weights, M", "compression", "WER reduction")
    rows = []
    for name, hidden in SIZES.items():
        case = Case(nodes=4, hidden=hidden)
        cells = (
            name,
            _mean((row.weights / 1e6 for row in runs(measured, case)), 2),
            seeds_words(measured, case),
            ratio_words(measured, case),
            accuracy_words(measured, case),
            accuracy_words(measured, case.plain_sgd),
            loss_words(measured, case),
        )
        rows.append(cells)
    return _beside((head, *rows), (paper, *PAPER_SIZES))


def table_of_own_residuals(measured: Measured) -> str:
    """Make the table of nodes that take the gradient at replica + own residual, beside the same without."""
    each = ("seeds", "compression", "accuracy, %", "points lost")
    head = ("nodes", "tau", *each, *(f"own: {cell}" for cell in each), "points gained")
    rows = []
    for nodes, sum_tau in OWN_RESIDUAL:
        plain, own = (Case(nodes=nodes, sum_tau=sum_tau, own_residual=own) for own in (False, True))
        cells = (
            words(measured, case)
            for case in (plain, own)
            for words in (seeds_words, ratio_words, accuracy_words, loss_words)
        )
        rows.append((f"{nodes}", f"{sum_tau:g}", *cells, spread(gains(measured, own), 2)))
    return "\n".join(table(head, rows))


def verdicts(measured: Measured) -> list[str]:
    """Judge whether four nodes lose as little as they should at the least compression that is wanted, and
    whether larger nets compress better.
    """
    sizes = sorted(
        (rows[0].weights, mean(_ratios(measured, case)))
        for hidden in SIZES.values()
        for case in [Case(nodes=4, hidden=hidden)]
        if (rows := runs(measured, case))
    )
    rising = all(less[1] < more[1] for less, more in pairwise(sizes))
    words = ", ".join(f"{ratio:,.0f} of {weights / 1e6:.2f} M weights" for weights, ratio in sizes)
    verdict = ("yes" if rising else "**no**") if len(sizes) > 1 else "not measured"
    return [
        *(_verdict(measured, *each) for each in WANTED),
        f"Larger nets compress better: {verdict} ({words}).",
    ]


def _verdict(measured: Measured, ratio: float, points: float, own_residual: bool) -> str:
    """Judge by the tau that loses least, of those that compress this much and have the most seeds."""
    wanted = (
        f"Four nodes, compression at least {ratio:,.0f}{', own residual' if own_residual else ''}: "
        f"at most {points:g} points lost against plain SGD"
    )
    cases = {Case(nodes=4, sum_tau=sum_tau, own_residual=own_residual) for sum_tau in SUM_TAUS}
    lost = {
        case: found
        for case in cases
        if (found := losses(measured, case)) and min(_ratios(measured, case)) >= ratio
    }
    if not lost:
        return f"{wanted}: not measured."
    case = min(lost, key=lambda each: (-len(lost[each]), mean(lost[each])))
    seeds = len(lost[case])
    some = f", by {seeds} of {len(SEEDS)} seeds" if seeds < len(SEEDS) else ""
    met = "met" if mean(lost[case]) <= points else "**missed**"
    return (
        f"{wanted}: {met}, {loss_words(measured, case)} lost "
        f"at tau {case.sum_tau:g} and {ratio_words(measured, case)}{some}."
    )


def runs(measured: Measured, case: Case) -> list[Figures]:
    """Return the figures of this case for every seed."""
    return [row for each, row in measured.items() if replace(each, seed=case.seed) == case]


def losses(measured: Measured, case: Case) -> list[float]:
    """In points of accuracy against plain SGD by the same seed from the same weights, for each seed that both
    have.
    """
    lost = []
    for each, row in measured.items():
        plain = measured.get(each.plain_sgd)
        if replace(each, seed=case.seed) == case and plain is not None and row.began_with(plain):
            lost.append(100 * (plain.accuracy - row.accuracy))
    return lost


def gains(measured: Measured, own: Case) -> list[float]:
    """In points of accuracy against the same nodes and tau without the own residual, for each seed that both
    have.
    """
    gained = []
    for each, row in measured.items():
        without = measured.get(replace(each, own_residual=False))
        if replace(each, seed=own.seed) == own and without is not None and row.began_with(without):
            gained.append(100 * (row.accuracy - without.accuracy))
    return gained


def seeds_words(measured: Measured, case: Case) -> str:
    """Say how many seeds were measured."""
    return f"{len(runs(measured, case))}" if runs(measured, case) else NONE


def loss_words(measured: Measured, case: Case) -> str:
    """With the spread over seeds."""
    return spread(losses(measured, case), 2)


def accuracy_words(measured: Measured, case: Case) -> str:
    """Return the accuracy of all seeds in percent, as text."""
    return spread([100 * row.accuracy for row in runs(measured, case)], 2)


def ratio_words(measured: Measured, case: Case) -> str:
    """Return the ratio of all seeds, as text."""
    return spread(_ratios(measured, case), 0)


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and of several values the least and the largest: 52.13 (51.90 to 52.40)."""
    if len(values) < 2:
        return _mean(values, digits)
    return f"{_mean(values, digits)} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _mean(values: Iterable[float | None], digits: int) -> str:
    found = [value for value in values if value is not None]
    return f"{mean(found):,.{digits}f}" if found else NONE


def _ratios(measured: Measured, case: Case) -> list[float]:
    return [row.ratio for row in runs(measured, case) if row.ratio is not None]


def _beside(ours: Sequence[Sequence[str]], paper: Sequence[Sequence[str]]) -> str:
    """Ours on the left, the paper's on the right, row by row; the first of each is its head."""
    empty = (NONE,) * len(ours[0]), (NONE,) * len(paper[0])
    rows = [(*(left or empty[0]), *(right or empty[1])) for left, right in zip_longest(ours, paper)]
    return "\n".join(table(rows[0], rows[1:]))


def missing(measured: Measured) -> list[str]:
    """Names of the cases that have not been measured."""
    return [case.name for case in CASES if case not in measured]
