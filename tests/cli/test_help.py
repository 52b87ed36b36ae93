"""What helps at the command line: --help, -h, and the completion of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.main import get_command

import p2psgd.cli.app
from tests import DEADLINE_S


def every_command(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, each in getattr(command, "commands", {}).items():
        yield from every_command(each, (*words, name))


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, columns: int = 80
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.argv", ["p2psgd", *words])
    with pytest.raises(SystemExit) as end:
        p2psgd.cli.app.main()
    assert end.value.code == 0
    return capsys.readouterr().out


def test_h_is_help_for_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = list(every_command(get_command(p2psgd.cli.app.app)))
    assert ("checkpoint", "list") in commands
    for words in commands:
        helps = [printed(monkeypatch, capsys, *words, option) for option in ("-h", "--help")]
        assert helps[0] == helps[1], words
        assert helps[0].startswith("Usage: "), words


def test_help_shows_every_command_below_a_heading_with_its_whole_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(monkeypatch, capsys, "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.partition("\n")[2]
    headings = [line for line in text.splitlines() if line and not line.startswith((" ", "Usage"))]
    assert headings == ["Options:", "Train:", "Prepare:", "Look at a node:", "Use a node:"]
    one_line = " ".join(text.split())
    for name, command in cast(Any, get_command(p2psgd.cli.app.app)).commands.items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        assert f"{name} {summary}" in one_line


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("p2psgd sta", ["status"]),
        ("p2psgd checkpoint ", ["list", "export"]),
        ("p2psgd train --mode r", ["ring"]),
        ("p2psgd train --recipe ", ["digits", "speech", "small.toml"]),
        ("p2psgd local --recipe s", ["speech", "small.toml"]),
    ],
)
def test_a_shell_completes_commands_and_words(tmp_path: Path, line: str, completed: list[str]) -> None:
    for name in ("small.toml", "small.txt"):
        (tmp_path / name).touch()
    command = Path(sys.executable).with_name("p2psgd")
    asked = {"_P2PSGD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [command],
        env={**os.environ, **asked},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (completed, "")


def test_completion_is_installed_for_the_shell_at_hand(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("p2psgd")
    subprocess.run(
        ["bash", "--norc", "-c", f"'{command}' --install-completion; true"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "_P2PSGD_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "p2psgd.sh").read_text()
