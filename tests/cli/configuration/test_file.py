"""The file of options: what it may say, and the sentence for what it may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.cli.configuration import FILE_BYTES_MAX, PeersText, read_file

KINDS = {
    "exposed": bool,
    "budget": int,
    "failure_timeout": float,
    "listen": str,
    "state": Path,
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


def test_values_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, '# a node\nlisten = "x"\n  "budget" = 5\nexposed = true\nfailure_timeout = 2\n')
    assert read_file(path, KINDS) == {"listen": "x", "budget": 5, "exposed": True, "failure_timeout": 2}


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert read_file(written(tmp_path, 'state = "state"\nlisten = "x"'), KINDS) == {
        "state": str(tmp_path / "state"),
        "listen": "x",
    }
    assert read_file(written(tmp_path, 'state = "/p"'), KINDS) == {"state": "/p"}
    assert read_file(written(tmp_path, 'state = "~/p"'), KINDS) == {"state": "/home/alice/p"}


def test_a_source_of_peers_is_relative_only_if_it_is_a_file(tmp_path: Path) -> None:
    kinds = {"peers": PeersText}
    for text, read in (
        ("hosts.txt", str(tmp_path / "hosts.txt")),
        ("./dns:x", str(tmp_path / "dns:x")),
        ("dns:nodes.example:7400", "dns:nodes.example:7400"),
        ("exec:./list //all", "exec:./list //all"),
    ):
        assert read_file(written(tmp_path, f'peers = "{text}"'), kinds) == {"peers": read}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "\nbudgit = 3",
            "there is no option 'budgit', known are budget, exposed, failure_timeout, listen, state$",
        ),
        ("[node]\nbudget = 3", "no option 'node', known are .*; options stand there without \\[tables\\]$"),
        ("budget.x = 3", "budget: it takes a whole number, without quotes$"),
        ('budget = "3"', "budget: it takes a whole number, without quotes$"),
        ("budget = true", "budget: it takes a whole number"),
        ("budget = 3.0", "budget: it takes a whole number"),
        ("failure_timeout = true", "failure_timeout: it takes a number, without quotes$"),
        ("exposed = 1", "exposed: it takes true or false$"),
        ("listen = 7315", "listen: it takes text, in quotes$"),
        (f"budget = {9 * 10**18}9", "budget: it takes no number of more than 63 bits$"),
        (f"failure_timeout = 1{'0' * 400}", "failure_timeout: it takes no number of more than 63 bits$"),
        (f"budget = 0x{'f' * 5000}", "budget: it takes no number of more than 63 bits$"),
        (f"listen = [0x{'f' * 5000}]", "listen: it takes text, in quotes$"),
        (f"budget = {'9' * 5000}", "is not TOML: Exceeds the limit"),
        ("listen = 2026-11-22", "listen: it takes text, in quotes$"),
        ('state = "a\\u0000b"', "state: it takes text, in quotes$"),
        ("budget 3", "is not TOML: Expected '=' after a key in a key/value pair \\(at line 1, column 8\\)$"),
        ("budget = 3\nbudget = 4", "is not TOML: Cannot overwrite a value"),
        ("x = " + 30_000 * "[", "is not TOML: "),
        (b"listen = '\xff'", "is not TOML: 'utf-8' codec can't decode byte 0xff"),
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
