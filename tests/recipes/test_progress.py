"""What is reported and when."""

import pytest

from p2psgd.recipes.telemetry import Progress
from tests.recipes.fake_link import as_link


class Line:
    """Collects reports, and is the clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reports: list[dict[str, object]] = []

    def report(self, **fields: object) -> None:
        self.reports.append(fields)

    def clock(self) -> float:
        return self.now


def test_reports_come_at_most_twice_a_second() -> None:
    line = Line()
    progress = Progress(as_link(line), 0, line.clock)
    for _ in range(101):
        progress.trained(10, 1.0, 0.5)
        line.now += 0.1
    assert len(line.reports) <= 21
    assert line.reports[-1] == {
        "samples": pytest.approx(1000, abs=50),
        "samples_per_s": pytest.approx(100),
        "loss": 1.0,
        "test_accuracy": None,
        "waits": "",
        "epoch": 0.5,
    }


def test_waiting_is_said_and_not_counted_as_training() -> None:
    line = Line()
    progress = Progress(as_link(line), 500, line.clock)
    progress.waits("because")
    assert line.reports[0]["waits"] == "because"
    assert line.reports[0]["loss"] is None
    assert line.reports[0]["samples"] == 500
    line.now += 60
    for _ in range(3):
        progress.trained(10, 1.0, 0.5)
        line.now += 1
    assert line.reports[-1]["samples_per_s"] == pytest.approx(10)
    assert line.reports[-1]["samples"] == 530
    assert line.reports[-1]["waits"] == ""


def test_the_loss_is_a_running_mean_that_begins_at_the_first() -> None:
    line = Line()
    progress = Progress(as_link(line), 0, line.clock)
    for loss in (5.0, *[1.0] * 400):
        progress.trained(1, loss, 0.0)
        line.now += 1
    assert line.reports[0]["loss"] == 5.0
    assert line.reports[-1]["loss"] == pytest.approx(1.0, abs=0.01)


def test_the_last_report_is_sent_at_once() -> None:
    line = Line()
    progress = Progress(as_link(line), 0, line.clock)
    progress.trained(10, 1.0, 0.5)
    progress.ends(0.75)
    assert line.reports[-1]["test_accuracy"] == 0.75
    assert line.reports[-1]["samples"] == 10
