"""Numbers and lines as people read them, and how a process prints them."""

from __future__ import annotations

import os
import sys
from typing import Final

# ----------------------------------------------------------------------------
# Numbers as people read them: short in a table cell, whole in a sentence, a dash for what is not known.


UNKNOWN = "-"


def short(value: float | None) -> str:
    """Return at most five characters: 9999, 12.3k, 4.56M."""
    if value is None:
        return UNKNOWN
    if abs(value) < 9_999.5:
        return f"{value:.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = value / size
        if abs(scaled) < 999.5:
            return f"{scaled:#.3g}".rstrip(".") + unit
    return f"{value:.0e}"


def grouped(value: float | None) -> str:
    """Return a whole number with commas: 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def decimals(value: float | None, places: int) -> str:
    """Return a number with a fixed count of decimals."""
    return UNKNOWN if value is None else f"{value:,.{places}f}"


def percent(fraction: float | None) -> str:
    """Return a fraction of one as a percentage with two decimals."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.2f} %"


def times(ratio: float | None) -> str:
    """Return a ratio as `412x`, with a decimal below ten."""
    if ratio is None:
        return UNKNOWN
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{short(ratio)}x"


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units: 8 s, 3 min 5 s, 2 h 14 min, 3 d 4 h."""
    if seconds is None:
        return UNKNOWN
    whole_s = max(0, round(seconds))
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3_600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    if whole_s < 86_400:
        return f"{whole_s // 3_600} h {whole_s % 3_600 // 60} min"
    return f"{whole_s // 86_400} d {whole_s % 86_400 // 3_600} h"


def milliseconds(value: float | None) -> str:
    """Return a time with two digits that matter: 0.12 ms, 4.5 ms, 120 ms."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} ms" if value >= 9.95 else f"{value:#.2g} ms"


def size(byte_count: float | None) -> str:
    """Return a number of bytes in decimal units, as network links are measured: 812 B, 4.1 kB, 1.2 MB."""
    if byte_count is None:
        return UNKNOWN
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(byte_count) >= scale:
            return f"{byte_count / scale:.1f} {unit}"
    return f"{byte_count:.0f} B"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return `1 peer`, `3 peers`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: list[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def how_to_install(extra: str) -> str:
    """Return the commands that install p2psgd with one of its extras; no package index has it."""
    wheel = f'pip install "$(ls p2psgd-*.whl)[{extra}]"'
    return f"pip install '.[{extra}]' in a checkout, or {wheel} beside the wheel"


def printable(text: object) -> str:
    """Return `text` with all that a terminal might obey escaped: parts of it were written by peers."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


# ----------------------------------------------------------------------------
# Standard output of a command, and what p2psgd has to say in a process that is not its own.


OWN: Final = "p2psgd: "  # how a line of p2psgd begins, among the lines of a script


def say(words: str) -> None:
    """Write one line to standard error, marked as p2psgd's own; on a terminal in the place of a progress bar
    that a script has left there.
    """
    isatty = getattr(sys.stderr, "isatty", None)  # scripts put objects of their own there
    begin = "\r\x1b[K" if isatty is not None and isatty() else ""
    print(f"{begin}{OWN}{printable(words)}", file=sys.stderr, flush=True)


def print_text(text: str) -> bool:
    """Write a text and a newline; False if nobody reads on, as in `p2psgd status | head`."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # Typer would exit with 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
