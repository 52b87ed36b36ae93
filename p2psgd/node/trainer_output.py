"""The output of a trainer: cut into lines for a log, limited, and its end kept for when the trainer crashes.

Pure: bytes and times in, lines out. A line has no terminal control sequences and at most LINE_BYTES_MAX
bytes. Of a line that was overwritten by carriage returns, as progress bars do it, the last state counts. A
line of p2psgd's own that was printed behind such a state is a line for itself.
Empty lines are left out. A script that prints megabytes fills no disk: WINDOW_BYTES pass in each WINDOW_S.
Further lines are counted, and one line reports them. The last of them are written when the trainer ends.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence
from typing import Final

from p2psgd.base.errors import ExitCode
from p2psgd.base.formatting import OWN, counted, size

LINE_BYTES_MAX: Final = 4096
LINES_KEPT: Final = 100  # at the end: a traceback of PyTorch takes some 40, and torchrun's report as many
WINDOW_S: Final = 10.0
WINDOW_BYTES: Final = 256 * 1024  # 400 lines a second: a hundredth of a core for the daemon, 2 GB a day
LINE_COST: Final = 64  # bytes that a line counts for in addition: its time, and the work with it
OWN_TRAINER: Final = "p2psgd train: "  # how a line of the built-in trainer begins

# CSI (colours, movements), OSC (titles, links) and other escape sequences of ECMA-48.
_CONTROL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")
_BEHIND_BAR: Final = re.compile(rb"(\r[^\r\n]+)(?=" + OWN.encode() + b")")
_LAUNCHER: Final = re.compile(r"torch/distributed/elastic/|torch\.distributed\.elastic\.")
_RANK: Final = re.compile(r"^\[rank(\d+)\]: ")  # before each line of a traceback of PyTorch's in a group
_REPORTED_RANK: Final = re.compile(r"\s*rank\s*: (\d+) \(local_rank: \d+\)")
_REPORTED_EXIT: Final = re.compile(r"\s*exitcode\s*: (-?\d+)\s*\(pid: (\d+)\)")
_KILLED_BY_LAUNCHER: Final = re.compile(r"Unable to shutdown process (\d+) ")
_OTHER_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRACEBACKS: Final = (
    "Traceback (most recent call last)",
    "Exception Group Traceback (most recent call last)",
)
_CAUSES: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


class TrainerOutput:
    """The output of one trainer process, standard output and standard error together."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that has not ended yet
        self._cut = 0  # bytes of that line which are left out
        self._last: deque[tuple[bytes, int]] = deque(maxlen=LINES_KEPT)  # lines, and what was cut off each
        self._left_out = 0  # lines that were not returned
        self._left_out_bytes = 0
        self._window_end = float("-inf")
        self._budget = 0

    @property
    def last_lines(self) -> list[str]:
        """Return the last lines, LINES_KEPT at most."""
        return [_clean(line, cut) for line, cut in self._last]

    def feed(self, data: bytes, now: float) -> list[str]:
        """Return the lines that `data` completes, as far as they pass; `now` in seconds, monotonic."""
        if now >= self._window_end:
            self._window_end, self._budget = now + WINDOW_S, WINDOW_BYTES
        *whole, rest = _BEHIND_BAR.sub(rb"\1\n", self._rest + data).split(b"\n")
        lines: list[str] = []
        for each in whole:
            lines += self._admit(each)
        self._rest = self._shorten(rest)
        return lines

    def end(self) -> list[str]:
        """Return the line that has not ended, and the last ones of those that were left out."""
        lines = self._admit(self._rest) if self._rest else []
        kept = min(self._left_out, len(self._last))
        if kept:
            self._left_out -= kept
            self._left_out_bytes -= sum(len(line) for line, _ in list(self._last)[-kept:])
            lines += [*self._note(), *self.last_lines[-kept:]]
        return lines

    def _admit(self, line: bytes) -> list[str]:
        """Return the lines to write now that a line is complete: none if there are too many."""
        line = self._shorten(line).strip(b"\r").rstrip()
        cut, self._cut = self._cut, 0
        if not line:
            return []
        self._last.append((line, cut))
        cost = len(line) + LINE_COST
        if cost > self._budget:
            self._budget = 0  # until the window ends, shorter lines also
            self._left_out += 1
            self._left_out_bytes += len(line) + cut
            return []
        self._budget -= cost
        return [*self._note(), _clean(line, cut)]

    def _shorten(self, line: bytes) -> bytes:
        """Return the last state of a line, cut where it is too long; the carriage return before it stays."""
        overwritten = max(line.rstrip(b"\r").rfind(b"\r"), 0)
        if overwritten:
            line, self._cut = line[overwritten:], 0
        self._cut += max(0, len(line) - LINE_BYTES_MAX)
        return line[:LINE_BYTES_MAX]

    def _note(self) -> list[str]:
        """Return the line that counts those left out, if there are any, and begin to count anew."""
        if not self._left_out:
            return []
        words = f"{counted(self._left_out, 'line')} ({size(self._left_out_bytes)}) of the trainer's output"
        self._left_out = self._left_out_bytes = 0
        return [f"{OWN}{words} are left out here: more than {size(WINDOW_BYTES)} came in {WINDOW_S:.0f} s"]


def _clean(line: bytes, cut: int) -> str:
    text, before = line.decode("utf-8", "replace"), ""
    while text != before:  # what is left may come together to another one
        before, text = text, _CONTROL.sub("", text)
    text = _OTHER_CONTROL.sub("", text.expandtabs()).rstrip()
    return f"{text} ... ({cut:,} more bytes)" if cut else text


# ----------------------------------------------------------------------------
# What the last lines tell of a crash.


def crash_report(last_lines: Sequence[str]) -> list[str]:
    """Return the last traceback, with those of its causes and all that follows; else all lines."""
    begin = 0
    for index in reversed(_tracebacks(last_lines)):
        begin = index
        if index == 0 or last_lines[index - 1] not in _CAUSES:
            break
    return list(last_lines[begin:])


def last_words(last_lines: Sequence[str], code: int) -> str:
    """Return the line that says best why a trainer ended with this exit code; "" if none does.

    That is the exception that nobody caught, p2psgd's own sentence where the code is one of p2psgd's, and
    else the last line that is the script's own: most of what p2psgd prints in a script is for information.
    """
    if code in (ExitCode.FAILED, ExitCode.INTERNAL) and (raised := _exception(last_lines)):
        return raised
    if last_lines and last_lines[-1].startswith(OWN) and code in set(ExitCode):
        return last_lines[-1].removeprefix(OWN)
    return next((line for line in reversed(last_lines) if not line.startswith((OWN, OWN_TRAINER))), "")


def without_launcher(last_lines: Sequence[str], code: int) -> tuple[list[str], int]:
    """Return what the script of a launcher printed last, and the exit code of the rank that failed, where
    torchrun reports that; else the lines and the code as they are.

    That of a rank which was killed counts most: the others fail since it is gone. A rank that torchrun has
    ended, by SIGTERM or SIGKILL, counts least. Of tracebacks those of the rank count, as others end with
    words on it.
    """
    reported: list[tuple[int, int]] = []  # code and rank
    failed: list[tuple[int, int]] = []  # of these, all that torchrun has not ended itself
    killed = {found[1] for line in last_lines if (found := _KILLED_BY_LAUNCHER.search(line))}
    rank = -1
    for line in last_lines:
        if found := _REPORTED_RANK.match(line):
            rank = int(found[1])
        elif found := _REPORTED_EXIT.match(line):
            code_of_rank = int(found[1])
            reported.append((code_of_rank, rank))
            if code_of_rank != -signal.SIGTERM and not (code_of_rank < 0 and found[2] in killed):
                failed.append(reported[-1])
    begin = next((place for place, line in enumerate(last_lines) if _LAUNCHER.search(line)), None)
    if code != ExitCode.FAILED or begin is None or not reported:
        return list(last_lines), code
    failed = failed or reported
    code, rank = min(failed) if min(failed)[0] < 0 else failed[-1]  # the root cause is the last one
    ours = [line for line in last_lines[:begin] if not (of := _RANK.match(line)) or rank in (int(of[1]), -1)]
    return [_RANK.sub("", line) for line in ours], code


def _exception(last_lines: Sequence[str]) -> str:
    """Return the line of the last traceback that names the exception; what the interpreter prints at its exit
    may follow.
    """
    places = _tracebacks(last_lines)
    after = last_lines[places[-1] + 1 :] if places else []
    return next((line for line in after if not line.startswith(" ")), "")


def _tracebacks(last_lines: Sequence[str]) -> list[int]:
    """Return where tracebacks begin; those within an exception group belong to the group's."""
    return [index for index, line in enumerate(last_lines) if line.lstrip(" +").startswith(_TRACEBACKS)]
