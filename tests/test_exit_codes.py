"""Exit codes mean the same in the code, in the unit of systemd and in the reference."""

from __future__ import annotations

import re
from pathlib import Path

from p2psgd.base.errors import FINAL, ExitCode

ROOT = Path(__file__).parent.parent


def test_systemd_does_not_retry_what_a_person_must_act_on() -> None:
    unit = (ROOT / "systemd" / "p2psgd.service").read_text()
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert {ExitCode(int(code)) for code in codes.split()} == FINAL | {ExitCode.FAILED}


def test_the_reference_has_all_of_them() -> None:
    page = (ROOT / "docs" / "reference" / "status.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(row) for row in rows} == set(ExitCode)
