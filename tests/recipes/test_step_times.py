"""The four parts make up a step, and the trace shows the same."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.trace import TraceEvents
from p2psgd.recipes.telemetry import Part, StepTimes
from tests.recipes.fake_link import as_link


class Bench:
    """A link and a clock: `spend` lets time pass, some of it in waiting, and the daemon work meanwhile."""

    def __init__(self) -> None:
        self.waited_s = self.adding_s = self.sending_s = 0.0
        self.now_ns = 1_000_000

    def clock_ns(self) -> int:
        return self.now_ns

    def spend(self, ms: float, *, waiting_ms: float = 0.0, daemon_ms: float = 0.0) -> None:
        self.now_ns += round(ms * 1e6)
        self.waited_s += waiting_ms / 1e3
        self.adding_s += daemon_ms / 1e3
        self.sending_s += 2 * daemon_ms / 1e3


def two_steps(bench: Bench, times: StepTimes) -> None:
    with times.outside_steps("before"):
        bench.spend(100, daemon_ms=50)
    for number in (1, 2):
        with times.step(f"round {number}"):
            with times.part("gradient"):
                since = times.clock_ns()
                bench.spend(3)
                times.show("layer 2", since)
                with times.part("begin layer 2", Part.SENDING):
                    bench.spend(0.5)
                since = times.clock_ns()
                bench.spend(2)
                times.show("layer 1", since)
            bench.spend(1)
            with times.part("send", Part.SENDING):
                bench.spend(2, waiting_ms=1.5)
            with times.part("wait", Part.WAITING):
                bench.spend(4, waiting_ms=4, daemon_ms=2)
            with times.part("apply", Part.ADDING):
                bench.spend(1.5)


def test_the_parts_make_up_the_steps_and_the_daemons_are_beside_them() -> None:
    bench = Bench()
    times = StepTimes(as_link(bench), None, bench.clock_ns)
    two_steps(bench, times)
    assert asdict(times.split) == pytest.approx(
        {
            "timed_steps": 2,
            "computing_s": 0.012,
            "waiting_s": 0.011,
            "adding_s": 0.003,
            "sending_s": 0.002,
            "daemon_adding_s": 0.004,
            "daemon_sending_s": 0.008,
        }
    )
    assert times.figures() == asdict(times.split)


def test_in_a_trace_spans_lie_within_each_other_and_sum_up_to_the_split() -> None:
    bench, trace = Bench(), TraceEvents()
    times = StepTimes(as_link(bench), trace, bench.clock_ns)
    two_steps(bench, times)
    spans = [(event["ts"], event["ts"] + event["dur"], event) for event in trace.events if event["ph"] == "X"]
    for begin, end, event in spans:
        for other_begin, other_end, other in spans:
            apart = end <= other_begin or other_end <= begin
            within = begin <= other_begin <= other_end <= end or other_begin <= begin <= end <= other_end
            assert apart or within, (event, other)
    sums = dict.fromkeys(("step", "sending", "waiting", "adding"), 0.0)
    for *_, event in spans:
        if event["cat"] in sums:
            sums[event["cat"]] += event["dur"] / 1e6
    split = times.split
    assert sums["step"] == pytest.approx(
        split.computing_s + split.waiting_s + split.adding_s + split.sending_s
    )
    assert sums["waiting"] == pytest.approx(split.waiting_s)
    assert sums["adding"] == pytest.approx(split.adding_s)
    assert sums["sending"] == pytest.approx(split.sending_s + 2 * 0.0015)  # waits within it are shown in it
    counts = [event["args"]["value"] for event in trace.events if event["ph"] == "C"]
    assert counts == pytest.approx([100 * 2 / 14, 100 * 4 / 14] * 2, abs=0.01)
