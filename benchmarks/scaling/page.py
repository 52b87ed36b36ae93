"""Write the table of docs/explanation/scaling.md. The prose around it stays; scaling.json has the figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import table
from benchmarks.scaling import CASES, WANTED_RATIO, Case, plot
from benchmarks.scaling.measure import Measured
from benchmarks.scaling.model import Prediction

PAGE: Final = Path("docs/explanation/scaling.md")
DATA: Final = Path("docs/explanation/scaling.json")
PICTURE: Final = Path("docs/explanation/scaling.png")
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
NAMES: Final = tuple(case.name for case in CASES if case.name != "small")


@dataclass(frozen=True, slots=True)
class Result:
    """A case, what was measured, and of one node with such a trainer."""

    case: Case
    measured: Measured
    alone: Measured
    load: float  # of the machine, before

    @property
    def prediction(self) -> Prediction:
        """By the model as it is now."""
        return self.case.predict()

    @property
    def ratio(self) -> float:
        """To N times one node."""
        return self.measured.steps_per_s / (self.case.nodes * self.alone.steps_per_s)

    @property
    def error(self) -> float:
        """Return the error of the predicted rate, as a fraction of the measured one."""
        return self.prediction.steps_per_s / self.measured.steps_per_s - 1

    @property
    def predicted_bytes(self) -> float:
        """Return the bytes that leave a host for each step, headers of packets included."""
        setting, prediction = self.case.setting, self.prediction
        return prediction.link_share * setting.link_bytes_per_s * prediction.step_s

    @property
    def bytes_error(self) -> float:
        """Return the error of the predicted bytes, as a fraction of the measured ones."""
        return self.predicted_bytes / self.measured.link_bytes - 1

    def words(self) -> str:
        """For the terminal, with what the model says of processors beside what they did."""
        case, measured, prediction = self.case, self.measured, self.prediction
        wanted = f", wanted {WANTED_RATIO}" if case.wanted else ""
        parts = ", ".join(f"{part.value} {_ms(busy_s)}" for part, busy_s in prediction.parts.items())
        lines = (
            f"{case.name}: {measured.steps_per_s:.2f} steps/s, predicted {prediction.steps_per_s:.2f} "
            f"({_percent(self.error)}); {self.ratio:.3f} of {case.nodes} times one node{wanted}",
            f"bytes a step {measured.link_bytes:,.0f}, predicted {self.predicted_bytes:,.0f} "
            f"({_percent(self.bytes_error)}); ms a step {_ms(measured.step_s)}, predicted {parts}",
            f"CPU ms a step: daemon {_ms(measured.daemon_cpu_s)}, trainer {_ms(measured.trainer_cpu_s)}; "
            f"in receive {_ms(measured.receiving_s)}, in send {_ms(measured.sending_s)}",
            f"processors {100 * measured.busy:.0f} % busy; slowest to fastest node "
            f"{measured.slowest_to_fastest:.3f}",
        )
        return "\n  ".join(lines)


def surroundings() -> str:
    """Return what the figures depend on beside the code."""
    return f"{os.cpu_count()} processors, Python {platform.python_version()}"


def keep(result: Result) -> None:
    """Write one more case, or a case anew."""
    known = {each.case.name: each for each in read()}
    known[result.case.name] = result
    write([known[name] for name in NAMES if name in known])


def read() -> list[Result]:
    """Read the measured cases; one that is gone is left out."""
    rows: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    cases = {case.name: case for case in CASES}
    return [
        Result(cases[name], Measured(**row["measured"]), Measured(**row["one_node"]), row["load"])
        for name, row in rows.items()
        if name in cases
    ]


def write(results: list[Result]) -> None:
    """Data, table and picture."""
    lines = [f"{json.dumps(each.case.name)}: {json.dumps(_row(each))}" for each in results]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} lacks the lines {BEGIN!r} and {END!r}")
    PAGE.write_text(before + "\n".join([begin, "", *table_of(results), "", end]) + after, encoding="utf-8")
    plot.draw([(each.case, each.measured, each.alone) for each in results], PICTURE)


def _row(result: Result) -> dict[str, Any]:
    case = asdict(result.case) | {"way": result.case.way.value}
    predicted = {"steps_per_s": result.prediction.steps_per_s, "link_bytes": result.predicted_bytes}
    return {
        "case": case,
        "measured": asdict(result.measured),
        "one_node": asdict(result.alone),
        "predicted": predicted,
        "load": result.load,
    }


COLUMNS: Final[dict[str, Callable[[Result], str]]] = {
    "way": lambda each: each.case.way.value,
    "nodes": lambda each: f"{each.case.nodes}",
    "weights": lambda each: f"{each.case.weights / 1e6:g} M",
    "Mbit/s": lambda each: f"{each.case.link_mbit:g}",
    "computing, ms": lambda each: f"{1e3 * each.case.computing_s:g}",
    "steps/s": lambda each: f"{each.measured.steps_per_s:.1f}",
    "predicted": lambda each: f"{each.prediction.steps_per_s:.1f}",
    "error": lambda each: _percent(each.error),
    "of N times one node": lambda each: f"{each.ratio:.3f}{_verdict(each)}",
    "kB a node sends in a step": lambda each: f"{each.measured.link_bytes / 1e3:,.1f}",
    "error of that": lambda each: _percent(each.bytes_error),
    "predicted bottleneck": lambda each: each.prediction.bottleneck.value,
    "processors busy": lambda each: f"{100 * each.measured.busy:.0f} %",
}


def table_of(results: list[Result]) -> list[str]:
    """Markdown, without a newline at the ends."""
    rows = [[words(each) for words in COLUMNS.values()] for each in results]
    loads = [each.load for each in results] or [0.0]
    load = f"load before each of them, the case before it included, {min(loads):.1f} to {max(loads):.1f}"
    missing = sorted(set(NAMES) - {each.case.name for each in results})
    rest = f" Cases not measured yet: {', '.join(missing)}." if missing else ""
    return [*table([*COLUMNS], rows), "", f"{surroundings()}; {load}.{rest}"]


def _verdict(result: Result) -> str:
    if not result.case.wanted:
        return ""
    return f" (wanted {WANTED_RATIO}: {'met' if result.ratio >= WANTED_RATIO else '**missed**'})"


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
