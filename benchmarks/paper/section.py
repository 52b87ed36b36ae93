"""The paper's section of docs/explanation/results.md."""

from __future__ import annotations

from benchmarks.paper import plot, tables
from benchmarks.paper.cases import PAPER, Case
from benchmarks.paper.figures import read
from examples.strom2015.pretrain import Pretraining


def section() -> str:
    """Empty while nothing has been measured."""
    measured = read()
    return make(measured) if measured else ""


def make(measured: tables.Measured) -> str:
    """Make the section from these figures."""
    parts = [
        "## The experiment of [Strom 2015], in small",
        _task(),
        _words(),
        "\n".join(f"- {verdict}" for verdict in tables.verdicts(measured)),
        "### Nodes (table 2)",
        tables.table_of_nodes(measured),
        _paragraph("""
            All nodes share this machine's processors, so more of them are no faster, and with whatever else
            ran there (the load below): samples/s are no measure of the method. What nodes would do on
            machines of their own is in [scaling.md](scaling.md).
            """),
        f"![Accuracy against epoch]({plot.EPOCHS.name})",
        "### tau (table 3), 4 nodes",
        tables.table_of_taus(measured),
        f"![Accuracy and compression against tau]({plot.TAUS.name})",
        "### Own residual counts",
        _paragraph("""
            *Own*: each node takes its gradient at the replica plus what it has not sent yet, by the recipe's
            key `own_residual = true`, instead of at the replica, as in the paper. *Points gained* compares
            both by the same seed.
            """),
        tables.table_of_own_residuals(measured),
        f"### Size of the model (table 4), 4 nodes, tau {Case(nodes=4).sum_tau:g}",
        tables.table_of_sizes(measured),
        f"![Compression against model size]({plot.MODELS.name})",
        _circumstances(measured),
    ]
    return "\n\n".join(parts)


def _task() -> str:
    return _paragraph(f"""
        `make paper` repeats the measurement with real daemons and trainers on one machine (`p2psgd local`),
        over TCP. The net has the paper's form: {len(PAPER.hidden)} hidden layers of sigmoids, here of
        {PAPER.hidden[0]} units, over 17 frames of 20 log-mel values, and a softmax over 204 states of phones.
        The task is 30 minutes of speech, tested on six minutes of other voices. The recipe is
        [examples/strom2015](../../examples/strom2015/README.md): pre-training layer by layer on
        {100 * Pretraining.part:g} % of the samples, {PAPER.epochs} epochs for all nodes together,
        mini-batches of {PAPER.batch}, the first {100 * PAPER.warm_start:g} % of the samples on one node,
        the rate {PAPER.learning_rate:g} for {PAPER.hold_epochs:g} epochs, and then half of it after every
        {PAPER.halve_every_epochs:g} epochs.
        """)


def _words() -> str:
    return _paragraph("""
        *Accuracy* is the fraction of correct frames, after the last epoch, on the other voices. *Plain SGD*
        is one process without p2psgd, by the same recipe from the same start. *Compression* is the bytes of
        float32 gradients, one per mini-batch, divided by the bytes of the updates, all headers included;
        *on the sockets* counts everything that the nodes sent to each other. The paper has 32 bits for an
        index and no headers, which is *weights/index* here. Brackets contain the least and largest value over
        seeds, which also draw another start and another order. *WER reduction* is the paper's measure: the
        reduction of wrong words relative to one of its nodes. tau is given as in the paper, for the gradient
        summed over a mini-batch.
        """)


def _circumstances(measured: tables.Measured) -> str:
    places = sorted({row.where for row in measured.values()})
    loads = [row.load for row in measured.values()]
    left = tables.missing(measured)
    unmeasured = f"Not measured yet: {', '.join(left)}." if left else ""
    return _paragraph(f"""
        Measured on: {"; ".join(places)}. Load before a case, the case before it included: {min(loads):.1f} to
        {max(loads):.1f}. {unmeasured}
        """)


def _paragraph(text: str) -> str:
    return " ".join(text.split())
