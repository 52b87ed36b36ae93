"""Do the machines agree about the time? Training does not need it; certificates, `--seconds` and logs do."""

from __future__ import annotations

from typing import Final

from p2psgd.doctor.finding import Finding, note, problem
from p2psgd.doctor.session import Clock
from p2psgd.ops import numerals

CHECK: Final = "clock"
NOTED_S: Final = 1.0
WRONG_S: Final = 60.0
MEND: Final = "on the one that is wrong: sudo timedatectl set-ntp true; timedatectl"


def compare_clocks(name: str, clock: Clock) -> Finding | None:
    """None if they agree within NOTED_S, as far as that can be seen through the round trip."""
    surely_s = max(0.0, abs(clock.ahead_s) - clock.round_trip_s / 2)
    if surely_s <= NOTED_S:
        return None
    side = "ahead of" if clock.ahead_s > 0 else "behind"
    shown = numerals.duration(surely_s) if surely_s >= 10 else f"{surely_s:.1f} s"
    words = f"the clock of {name} is {shown} {side} this one"
    if surely_s > WRONG_S:
        return problem(CHECK, f"{words}: certificates begin and end at other times there", MEND)
    return note(CHECK, words, MEND)


def describe_agreement(clocks: list[Clock]) -> str:
    """How close all of them are, for people."""
    most_s = max(abs(clock.ahead_s) + clock.round_trip_s / 2 for clock in clocks)
    return f"{numerals.counted(len(clocks), 'peer')} within {milliseconds(most_s)} of this machine's"


def milliseconds(seconds: float) -> str:
    """Two significant digits below 10 ms."""
    ms = 1e3 * seconds
    return f"{ms:.2f} ms" if ms < 1 else f"{ms:.1f} ms" if ms < 10 else f"{ms:,.0f} ms"
