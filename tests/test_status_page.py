"""Exit codes and kinds of events: the same in the code, in the unit of systemd and in the reference."""

from __future__ import annotations

import re
from pathlib import Path

from p2psgd.base.errors import FINAL, ExitCode
from p2psgd.storage.event_log import KINDS

ROOT = Path(__file__).parent.parent


def section(heading: str) -> str:
    page = (ROOT / "docs" / "reference" / "status.md").read_text()
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_systemd_does_not_retry_what_a_person_must_act_on() -> None:
    unit = (ROOT / "systemd" / "p2psgd.service").read_text()
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert {ExitCode(int(code)) for code in codes.split()} == FINAL | {ExitCode.FAILED}


def test_the_reference_has_all_codes() -> None:
    rows = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    assert {int(row) for row in rows} == set(ExitCode)


def test_the_reference_has_all_kinds_of_events() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \|", section("Events"), re.MULTILINE)
    assert {kind for row in rows for kind in row.split(", ")} - {"kind"} == KINDS
