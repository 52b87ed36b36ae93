"""--peers exec:COMMAND: what the command says, and what becomes of one that does not."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address
from p2psgd.net.peer_sources import command as command_module
from p2psgd.net.peer_sources.parse import parse_peers
from tests import DEADLINE_S


def ask(command: str) -> tuple[Address, ...]:
    source = parse_peers(f"exec:{command}")
    assert (source.ordered, source.again) == (False, True)
    return source.ask()


def refusal(command: str) -> tuple[str, ExitCode]:
    with pytest.raises(UsageError) as caught:
        ask(command)
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value.exit_code


def test_the_output_is_a_list_of_hosts_and_a_pipe_may_make_it() -> None:
    assert ask("printf 'alpha # one\\n\\nbeta:7000\\nalpha\\n' | cat; echo words >&2") == (
        Address("alpha", 7315),
        Address("beta", 7000),
    )
    assert ask("true") == ()


def test_a_command_that_fails_is_named_with_its_last_words_and_may_be_tried_again() -> None:
    words, code = refusal("echo one >&2; echo 'no\troute \033[1m' >&2; exit 3")
    assert words.endswith("the command ended with exit code 3: noroute [1m")
    assert code is ExitCode.TEMPORARY
    assert refusal("kill -9 $$")[0].endswith("the command was killed by signal 9")


def test_a_command_is_named_by_its_first_word_since_others_may_be_secret() -> None:
    assert refusal("echo alpha\nexit 3")[0].startswith("--peers exec:echo ...: the command ended")
    words, _ = refusal("TOKEN=secret false --key secret")
    assert words == "--peers exec:false ...: the command ended with exit code 1"
    source = parse_peers("exec:echo --key secret")
    assert (str(source), source.given) == ("exec:echo ...", "exec:echo --key secret")


def test_a_node_that_is_short_of_descriptors_may_try_again() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        words, code = refusal("echo alpha")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "cannot run: " in words
    assert code is ExitCode.TEMPORARY


def test_a_command_that_is_not_there_is_for_a_person() -> None:
    words, code = refusal("no-such-command-anywhere --list")
    assert "exit code 127: " in words
    assert "not found" in words
    assert code is ExitCode.CONFIGURATION
    assert refusal(" ")[1] is ExitCode.USAGE


def test_output_that_is_not_a_list_is_named_by_its_line() -> None:
    assert "the output of exec:echo ... line 2: 'b/c'" in refusal("echo a; echo b/c")[0]
    assert "is not text" in refusal("printf '\\377\\376'")[0]


def test_a_command_that_writes_without_end_is_killed(tmp_path: Path) -> None:
    assert "wrote more than 1048576 bytes" in refusal(f"echo $$ > {tmp_path}/pid; yes")[0]
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert "wrote more than" not in refusal("yes >&2 & sleep 0.2; kill $!; exit 1")[0]


def test_a_command_that_is_late_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "COMMAND_S", 0.5)
    words, code = refusal(f"sleep 300 & echo $! > {tmp_path}/pid; echo alpha; wait")
    assert words.endswith("the command was not done within 0.5 s")
    assert code is ExitCode.TEMPORARY
    assert is_gone(int((tmp_path / "pid").read_text()))


def is_gone(process: int) -> bool:
    """Return whether a process has ended, or is about to have."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False
