"""The table is filled as far as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals import __main__, section
from benchmarks.rivals.__main__ import Table, ways_of
from benchmarks.rivals.cases import Case, Setting, Task
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.results import Results
from benchmarks.rivals.tasks import SPEECH
from benchmarks.rivals.test_figures import outcome


def test_a_way_that_fails_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def run(task: Task, case: Case, setting: Setting) -> Outcome:
        """Note as hosts would, without training; DDP's hosts are never ready."""
        tried.append(case.way.name)
        assert case.way.name != "ddp", "not ready in 90 s"
        assert setting["rate"] != 0.2, "now and then one fails"
        return outcome(9.0, setting=dict(setting))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/explanation").mkdir(parents=True)
    monkeypatch.setattr(section, "draw", lambda results: None)
    monkeypatch.setattr(__main__, "surroundings", lambda: {"processors": "2 x some"})
    monkeypatch.setattr(__main__, "why_not", lambda module: "")
    monkeypatch.setattr(__main__, "run", run)
    cases = [case for case in SPEECH.cases if case.way.name in {"ddp", "p2psgd"} and case.mbit == 100]
    table = Table(Results.read(SPEECH), again=False)
    table.fill(cases, ways_of(SPEECH, cases))
    assert tried.count("ddp") == 2, "then it is given up"
    assert table.failures == {SPEECH.ways["ddp"]: 2, SPEECH.ways["p2psgd"]: 2}, (
        "and p2psgd is not: it runs in between"
    )
    kept = Results.read(SPEECH)
    assert set(kept.runs) == {case.name for case in cases if case.way.name == "p2psgd"}
    assert list(kept.failed.values())[:2] == ["AssertionError: not ready in 90 s"] * 2
    assert (
        "Failed when last tried: ddp, {'rate': 0.3}" in (tmp_path / "docs/explanation/results.md").read_text()
    )

    monkeypatch.setattr(__main__, "run", lambda task, case, setting: outcome(9.0, setting=dict(setting)))
    Table(kept, again=False).fill(cases, ways_of(SPEECH, cases))
    kept = Results.read(SPEECH)
    assert set(kept.runs) == {case.name for case in cases}, "the next one tries it again"
    assert kept.failed == {}
