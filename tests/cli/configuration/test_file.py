"""The file of options: what it may say, and the sentence for what it may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2psgd.cli.configuration import FILE_BYTES_MAX, read_file
from p2psgd.errors import ExitCode, UsageError

KINDS = {
    "exposed": bool,
    "budget": int,
    "patience": float,
    "listen": str,
    "state": Path,
    "hosts": list[Path],
}


def written(folder: Path, content: str | bytes) -> Path:
    """The content as a file."""
    path = folder / "node.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    """The sentence."""
    with pytest.raises(UsageError) as caught:
        read_file(path, KINDS)
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    return str(caught.value)


def test_values_and_their_lines_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path, '# a node\nlisten = """\nbudget = 3\n"""\n  "budget" = 5\nexposed = true\npatience = 2\n'
    )
    found = read_file(path, KINDS)
    assert found.values == {"listen": "budget = 3\n", "budget": 5, "exposed": True, "patience": 2}
    assert found.lines == {"listen": 2, "budget": 5, "exposed": 6, "patience": 7}
    assert found.place("budget") == f"{path}:5"
    assert found.words("exposed") == f"in {path}, line 6, exposed = true"


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    path = written(tmp_path, 'state = "state"\nhosts = ["/etc/hosts.txt", "more.txt"]\nlisten = "x"')
    values = read_file(path, KINDS).values
    assert values == {
        "state": str(tmp_path / "state"),
        "hosts": ["/etc/hosts.txt", str(tmp_path / "more.txt")],
        "listen": "x",
    }
    assert read_file(written(tmp_path, 'state = "~/p"'), KINDS).values == {"state": "/home/alice/p"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("\nbudgit = 3", "line 2: there is no option 'budgit', the nearest is budget"),
        ("Patience = 3", "line 1: there is no option 'Patience', the nearest is patience"),
        ("zzzz = 3", "line 1: there is no option 'zzzz' nor one like it \\(see --help\\)$"),
        (
            "[node]\nbudget = 3",
            "line 1: there is no option 'node' nor one like it .*; options stand there without \\[tables\\]",
        ),
        ("budget.x = 3", 'line 1, budget = {"x": 3}: it takes a whole number, without quotes'),
        ('budget = "3"', 'line 1, budget = "3": it takes a whole number, without quotes'),
        ("budget = true", "budget = true: it takes a whole number, without quotes"),
        ("budget = 3.0", "budget = 3.0: it takes a whole number"),
        ("patience = true", "patience = true: it takes a number, without quotes"),
        ("exposed = 1", "exposed = 1: it takes true or false"),
        ("listen = 7315", "listen = 7315: it takes text, in quotes"),
        (f"budget = {9 * 10**18}9", "it takes no number of more than 63 bits"),
        (f"patience = 1{'0' * 400}", "it takes no number of more than 63 bits"),
        (f"budget = 0x{'f' * 5000}", "line 1, budget = ...: it takes no number of more than 63 bits"),
        (f"listen = [0x{'f' * 5000}]", "line 1, listen = ...: it takes text, in quotes"),
        (f"budget = {'9' * 5000}", "is not TOML: a number is too long"),
        ("listen = 2026-11-22", 'listen = "2026-11-22": it takes text, in quotes'),
        ('state = "a\\u0000b"', "it takes text without a NUL"),
        ('state = "~nobody-has-this/x"', "it takes a path that does not begin with ~: there is no such user"),
        ('hosts = "x"', "it takes a list in square brackets"),
        ("hosts = [1]", "it takes text, in quotes"),
        ("budget 3", "is not TOML: expected '=' after a key in a key/value pair \\(at line 1, column 8\\)"),
        ("budget = 3\nbudget = 4", "is not TOML: cannot overwrite a value"),
        ("x = " + 30_000 * "[", "is not TOML: "),
        (b"listen = '\xff'", "is not a text file in UTF-8"),
        ((FILE_BYTES_MAX + 1) * "#", f"is larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_the_file_may_not_say_is_refused_in_one_sentence(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    path = written(tmp_path, content)
    sentence = refusal(path)
    assert str(path) in sentence
    assert re.search(words, sentence)
    assert len(sentence) < 300 + len(str(path))
    assert "\n" not in sentence


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent").endswith("absent: no such file or directory")
    assert refusal(tmp_path).endswith(f"{tmp_path}: is a directory")
