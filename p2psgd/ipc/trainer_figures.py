"""What the attached trainer last said about its progress, for people."""

from __future__ import annotations

from typing import Any

from p2psgd.ipc.requests import ReportRequest

SPLIT = ("steps", "computing_s", "waiting_s", "adding_s", "sending_s", "daemon_adding_s", "daemon_sending_s")
FIGURES = ("samples", "samples_per_s", "loss", "test_accuracy", "epoch", "waits", *SPLIT)


class TrainerFigures:
    """The latest of each figure; a trainer's stay when it leaves, but for its speed and what it waits for."""

    def __init__(self) -> None:
        self._figures = {name: getattr(ReportRequest(), name) for name in FIGURES}

    def update(self, report: ReportRequest) -> None:
        """Take over the figures that the report names."""
        for name in report.model_fields_set & self._figures.keys():
            self._figures[name] = getattr(report, name)

    def trainer_left(self) -> None:
        """Nobody computes and nobody waits any more."""
        self._figures.update(samples_per_s=0.0, waits="")

    def as_dict(self) -> dict[str, Any]:
        """For the status."""
        return dict(self._figures)
