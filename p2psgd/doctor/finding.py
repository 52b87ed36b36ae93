"""What a check has found: in order, worth knowing, or a problem with what mends it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from p2psgd.errors import ExitCode


class Grade(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend`: the command or line that mends a problem. `passing`: it may mend
    itself, as a machine does that has not come yet.
    """

    check: str
    grade: Grade
    words: str
    mend: str = ""
    passing: bool = False


def ok(check: str, words: str) -> Finding:
    """In order."""
    return Finding(check, Grade.OK, words)


def note(check: str, words: str, mend: str = "") -> Finding:
    """Nothing that keeps the run from working."""
    return Finding(check, Grade.NOTE, words, mend)


def problem(check: str, words: str, mend: str, *, passing: bool = False) -> Finding:
    """What a person must mend, or, if it is `passing`, may have to."""
    return Finding(check, Grade.PROBLEM, words, mend, passing)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """CONFIGURATION if a person must mend something, TEMPORARY if others were only not reached, else OK."""
    problems = [each for each in findings if each.grade is Grade.PROBLEM]
    if not problems:
        return ExitCode.OK
    return ExitCode.TEMPORARY if all(each.passing for each in problems) else ExitCode.CONFIGURATION
