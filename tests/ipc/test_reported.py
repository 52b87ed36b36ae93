"""The daemon adds its own count of steps to the figures that a trainer reports."""

from __future__ import annotations

from p2psgd.ipc.protocol import ReportRequest
from p2psgd.ipc.reported import Reported


def test_a_figure_that_is_left_out_stays_as_it_was() -> None:
    reported = Reported()
    reported.take(ReportRequest(step=0, of=100), 0)
    assert reported.at(50)["step"] == 50
    reported.take(ReportRequest(of=120), 50)
    assert (reported.at(50)["step"], reported.at(130)["step"]) == (50, 120)
    reported.take(ReportRequest(step=7), 130)
    assert (reported.at(133)["step"], reported.at(133)["of"]) == (10, 120)


def test_samples_go_on_with_the_next_trainer_as_steps_do() -> None:
    reported = Reported()
    reported.take(ReportRequest(batch=32), 0)
    reported.begin(10)
    assert (reported.at(10)["samples"], reported.at(15)["samples"]) == (320, 320)
    reported.take(ReportRequest(batch=8), 15)
    assert reported.at(20)["samples"] == 360
