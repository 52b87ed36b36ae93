"""Findings of the doctor, and the report made from them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from p2psgd import formatting
from p2psgd.cli.doctor.session import Peer
from p2psgd.errors import ExitCode
from p2psgd.observe.figures import printable

# ----------------------------------------------------------------------------
# What a check has found: in order, worth knowing, or a problem with what mends it.


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


# ----------------------------------------------------------------------------
# A report as text and as JSON. What others have said is escaped here.


_WORDS: Final = {Grade.OK: "ok", Grade.NOTE: "note", Grade.PROBLEM: "PROBLEM"}


def render(finding: Finding) -> str:
    """One line, and one more with what mends it."""
    line = f"{_WORDS[finding.grade]:<8} {finding.check:<13}  {printable(finding.words)}"
    return f"{line}\n{'':<8} {'':<13}  -> {printable(finding.mend)}" if finding.mend else line


def summarise(findings: Sequence[Finding]) -> str:
    """The last line."""
    count = {grade: sum(each.grade is grade for each in findings) for grade in Grade}
    code = exit_code(findings)
    words = formatting.counted(count[Grade.PROBLEM], "problem") if count[Grade.PROBLEM] else "no problem"
    return f"{words}, {formatting.counted(count[Grade.NOTE], 'note')}; exit code {code:d}"


def describe(
    findings: Sequence[Finding], peers: Sequence[Peer], dropped: Mapping[str, int]
) -> dict[str, Any]:
    """All of it, for machines."""
    return {
        "exit_code": int(exit_code(findings)),
        "findings": [
            {
                "check": each.check,
                "grade": each.grade.value,
                "words": each.words,
                "mend": each.mend,
                "passing": each.passing,
            }
            for each in findings
        ],
        "peers": [_describe_peer(peer) for peer in peers],
        "refused": dict(dropped),
    }


def _describe_peer(peer: Peer) -> dict[str, Any]:
    clock = peer.clock
    return {
        "address": str(peer.address),
        "hosts": list(peer.hosts),
        "name": peer.name,
        "outcome": peer.outcome.value,
        "words": peer.words,
        "reaches_this": peer.reaches_us,
        "round_trip_s": None if clock is None else clock.round_trip_s,
        "clock_ahead_s": None if clock is None else clock.ahead_s,
        "bytes_per_s_there": peer.sent_rate,
        "bytes_per_s_back": peer.received_rate,
    }
