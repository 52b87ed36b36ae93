"""The lines that p2psgd writes into the output of a script."""

from __future__ import annotations

import io
import sys

import pytest

from p2psgd.base.formatting import say


class Tee:
    """The least that a script may put in the place of standard error."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_goes_to_whatever_a_script_has_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tee, terminal = Tee(), Terminal()
    monkeypatch.setattr(sys, "stderr", tee)
    say("one")
    monkeypatch.setattr(sys, "stderr", terminal)
    say("two")
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    say("three")
    assert (tee.text, terminal.getvalue()) == ("p2psgd: one\n", "\r\x1b[Kp2psgd: two\n")
