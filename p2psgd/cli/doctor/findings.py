"""Findings of the doctor, the report made from them, and its exit code."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from p2psgd.base import formatting
from p2psgd.base.errors import ExitCode
from p2psgd.base.formatting import printable


class Grade(enum.StrEnum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. `mend` is the command or line that solves a problem; a `passing` problem may
    solve itself, such as a machine that is not there yet.
    """

    check: str
    grade: Grade
    words: str
    mend: str = ""
    passing: bool = False


def ok(check: str, words: str) -> Finding:
    """Make a finding of what is in order."""
    return Finding(check, Grade.OK, words)


def note(check: str, words: str, mend: str = "") -> Finding:
    """Make a finding that does not keep the run from working."""
    return Finding(check, Grade.NOTE, words, mend)


def problem(check: str, words: str, mend: str, *, passing: bool = False) -> Finding:
    """Make a finding on which a person must act, or may have to if it is `passing`."""
    return Finding(check, Grade.PROBLEM, words, mend, passing)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return CONFIGURATION if a person must act, TEMPORARY if all problems are passing, else OK."""
    problems = [each for each in findings if each.grade is Grade.PROBLEM]
    if not problems:
        return ExitCode.OK
    return ExitCode.TEMPORARY if all(each.passing for each in problems) else ExitCode.CONFIGURATION


_WORDS: Final = {Grade.OK: "ok", Grade.NOTE: "note", Grade.PROBLEM: "PROBLEM"}


def render(finding: Finding) -> str:
    """Render one line, and one more with the remedy; text from other machines is escaped."""
    line = f"{_WORDS[finding.grade]:<8} {finding.check:<13}  {printable(finding.words)}"
    return f"{line}\n{'':<8} {'':<13}  -> {printable(finding.mend)}" if finding.mend else line


def summarise(findings: Sequence[Finding]) -> str:
    """Render the last line."""
    count = {grade: sum(each.grade is grade for each in findings) for grade in Grade}
    words = formatting.counted(count[Grade.PROBLEM], "problem") if count[Grade.PROBLEM] else "no problem"
    return f"{words}, {formatting.counted(count[Grade.NOTE], 'note')}; exit code {exit_code(findings):d}"
