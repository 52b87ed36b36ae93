"""Crashes of a trainer, counted: when it is started again, and when that is not worth another try."""

from __future__ import annotations

from typing import Final

from p2psgd.errors import STORE, ExitCode, UsageError

FIRST_DELAY_S: Final = 1.0  # before a crashed trainer is started again; doubled by every crash,
DELAY_MAX_S: Final = 60.0  # up to this,
STEADY_S: Final = 30.0  # unless it had run for so long
CRASHES_MAX: Final = 10  # in a row, without a mini-batch, or of the same kind and sooner than STEADY_S
ABSENT_CRASHES_MAX: Final = 4  # in a row with the same words, while no trainer has ever attached,
QUICK_S: Final = 2.0  # of lives that were shorter than this: it is the command that is wrong
MISSING: Final = "ModuleNotFoundError: "  # how Python begins the last line of a script that lacks a package
REFUSED: Final = f"{UsageError.__module__}.{UsageError.__qualname__}: "  # the same of what p2psgd refuses
FINAL: Final = frozenset({ExitCode.USAGE, ExitCode.DATA, ExitCode.PERMISSION, ExitCode.CONFIGURATION})


class Crashes:
    """Of one trainer command; `words` tell the last one."""

    def __init__(self) -> None:
        self.words = ""
        self._in_a_row = 0
        self._alike = 0
        self._delay_s = FIRST_DELAY_S

    def count(self, code: int, last_line: str, *, lived_s: float, progressed: bool) -> float:
        """Seconds until it is to be started again, after a life of `lived_s`, in which it has `progressed` if
        there was a mini-batch. `code` as asyncio has it: negative for a signal.
        """
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        said = ": " if code > 0 else "; it said last: "  # whoever is killed does not say why
        words = f"the trainer crashed ({how}){said + last_line if last_line else ''}"
        steady, same = lived_s >= STEADY_S, code > 0 and words == self.words
        if code > 0 and STORE in last_line:  # it may be back at any time
            self._in_a_row = self._alike = 0
        else:
            self._in_a_row = 1 if progressed and (steady or not same) else self._in_a_row + 1
            self._alike = self._alike + 1 if same and lived_s < QUICK_S else 1
        delay_s = FIRST_DELAY_S if steady else self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_MAX_S)
        self.words = words
        return delay_s

    def give_up(self, *, came: bool) -> str:
        """Why another try is not worth it; "" if it is. `came`: a trainer has attached, at any time."""
        if self._alike >= ABSENT_CRASHES_MAX and not came:
            return f"{self.words}; {self._alike} times in a row, without ever attaching to this node"
        if self._in_a_row >= CRASHES_MAX:
            return f"{self.words}; {self._in_a_row} times in a row"
        return ""


def what_to_mend(code: int, last_line: str) -> tuple[str, ExitCode] | None:
    """The sentence and the exit code, if it ended for what a person must mend."""
    if code in FINAL:
        return last_line or f"the trainer ended with exit code {code}", ExitCode(code)
    if code == 1 and last_line.startswith(MISSING):
        words = last_line.removeprefix(MISSING).replace("No module", "no module", 1)
        advice = "install it where the trainer's Python finds it"
        return f"the trainer cannot run: {words}; {advice}", ExitCode.CONFIGURATION
    if code == 1 and last_line.startswith(REFUSED):
        return last_line.removeprefix(REFUSED), ExitCode.DATA
    return None
