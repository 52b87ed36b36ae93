"""The figures that a trainer reports, for people, with what follows from the daemon's own count of steps."""

from __future__ import annotations

from typing import Any, Final

from p2psgd.ipc.protocol import ReportRequest
from p2psgd.wire.messages import Fields

FIGURES: Final = tuple(name for name in ReportRequest.model_fields if name != "op")


class Reported:
    """The figures that were reported last; a script need report `step`, `of` and `batch` once only."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {name: getattr(ReportRequest(), name) for name in FIGURES}
        self._steps_then = 0  # when the script reported its `step`
        self._batch_since, self._samples_before = 0, 0  # steps and samples when it reported its `batch`

    @property
    def loss(self) -> float | None:
        """Return the loss; None if it is not known."""
        loss: float | None = self._figures["loss"]
        return loss

    def at(self, steps: int) -> Fields:
        """Return all figures; `steps`: those that the node's trainers have made."""
        figures = dict(self._figures)
        if figures["of"]:
            figures["step"] = min(figures["step"] + steps - self._steps_then, figures["of"])
        figures["samples"] = figures["samples"] or self._samples(steps)
        return figures

    def take(self, report: ReportRequest, steps: int) -> None:
        """Take note of the figures that a report names; `steps` as for `at`."""
        if "batch" in report.model_fields_set:
            self._batch_since, self._samples_before = steps, self._samples(steps)
        if "of" in report.model_fields_set:
            self._figures["step"], self._steps_then = self.at(steps)["step"], steps
        for name in report.model_fields_set & self._figures.keys():
            self._figures[name] = getattr(report, name)
        if "step" in report.model_fields_set:
            self._steps_then = steps

    def begin(self, steps: int) -> None:
        """Begin with another trainer, which attaches; samples go on, as steps do."""
        self._batch_since, self._samples_before = steps, self.at(steps)["samples"]
        self._figures.update(samples=0, step=0, of=0, batch=0, iteration=0)

    def end(self) -> None:
        """Forget what is true of a trainer only while it is attached."""
        self._figures.update(samples_per_s=0.0, waits="")

    def _samples(self, steps: int) -> int:
        counted: int = self._figures["batch"] * (steps - self._batch_since)
        return self._samples_before + counted
