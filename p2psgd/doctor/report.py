"""A report as text and as JSON. What others have said is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from p2psgd.doctor.finding import Finding, Grade, exit_code
from p2psgd.doctor.peer import Peer
from p2psgd.ops import numerals
from p2psgd.ops.figures import printable

_WORDS: Final = {Grade.OK: "ok", Grade.NOTE: "note", Grade.PROBLEM: "PROBLEM"}


def render(finding: Finding) -> str:
    """One line, and one more with what mends it."""
    line = f"{_WORDS[finding.grade]:<8} {finding.check:<13}  {printable(finding.words)}"
    return f"{line}\n{'':<8} {'':<13}  -> {printable(finding.mend)}" if finding.mend else line


def summarise(findings: Sequence[Finding]) -> str:
    """The last line."""
    count = {grade: sum(each.grade is grade for each in findings) for grade in Grade}
    code = exit_code(findings)
    words = numerals.counted(count[Grade.PROBLEM], "problem") if count[Grade.PROBLEM] else "no problem"
    return f"{words}, {numerals.counted(count[Grade.NOTE], 'note')}; exit code {code:d}"


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
