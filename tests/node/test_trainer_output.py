"""What a trainer prints, as lines of a log: clean, limited, and with an end that tells of a crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.node.trainer_output import (
    LINE_BYTES_MAX,
    LINES_KEPT,
    WINDOW_BYTES,
    WINDOW_S,
    TrainerOutput,
    crash_report,
    last_words,
    without_launcher,
)


def lines_of(*pieces: bytes) -> list[str]:
    """All lines of these pieces, which come one after the other."""
    output = TrainerOutput()
    return [line for piece in pieces for line in output.feed(piece, 0.0)] + output.end()


def test_lines_come_as_they_end_however_they_were_cut() -> None:
    output = TrainerOutput()
    assert output.feed(b"epoch 1\nepo", 0.0) == ["epoch 1"]
    assert output.feed(b"ch 2", 0.0) == []
    assert output.feed(b"\n\n\nepoch 3\r\nend", 0.0) == ["epoch 2", "epoch 3"]
    assert output.end() == ["end"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b" 10%|#   |\r 50%|##  |\r100%|####|\n"],
        [b" 10%|#   |", b"\r 50%|##  |", b"\r100%|####|", b"\n"],
        [b" 10%|#   |\r", b" 50%|##  |\r", b"100%|####|\r", b"\n"],
        [b" 10%|#   |\r", b"100%|####|\r"],
    ],
)
def test_of_a_progress_bar_the_last_state_is_left(pieces: list[bytes]) -> None:
    assert lines_of(*pieces) == ["100%|####|"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\r 10%|#   |\r 50%|##  |p2psgd: links\n\r100%|####|\n"],
        [b"\r 10%|#   |", b"\r 50%|##  |", b"p2psgd: li", b"nks\n", b"\r100%|####|", b"\n"],
        [b"\r 50%|##  |p2p", b"sgd: links\n\r100%|####|"],
    ],
)
def test_a_line_of_p2psgd_is_not_glued_to_a_progress_bar(pieces: list[bytes]) -> None:
    assert lines_of(*pieces) == [" 50%|##  |", "p2psgd: links", "100%|####|"]


def test_a_scripts_own_line_may_have_p2psgd_in_it() -> None:
    assert lines_of(b"INFO p2psgd: links\r\n") == ["INFO p2psgd: links"]


def test_a_progress_bar_that_wipes_itself_out_leaves_nothing() -> None:
    assert lines_of(b" 50%|##  |\r", b"          \r", b"loss 0.3\n") == ["loss 0.3"]


def test_a_progress_bar_may_go_on_for_ever() -> None:
    output = TrainerOutput()
    for number in range(10_000):
        assert output.feed(b"\r" + b"%d steps" % number + 50 * b" ", 0.0) == []
    assert len(output._rest) < 100
    assert output.end() == ["9999 steps"]


def test_terminal_control_sequences_are_taken_out_and_tabs_are_spaces() -> None:
    coloured = b"\x1b[1;32mok\x1b[0m\t\x1b]0;title\x07\x1b[2K\x1b[3A\x1b(B\x1bcdone\n"
    assert lines_of(coloured) == ["ok      done"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert lines_of(b"loss \xff\xfe 0.3\n") == ["loss \ufffd\ufffd 0.3"]


def test_a_long_line_is_cut_and_says_so() -> None:
    (line,) = lines_of(*[b"x" * 1000] * 1000, b"\nnext\n")[:1]
    assert line == "x" * LINE_BYTES_MAX + f" ... ({1_000_000 - LINE_BYTES_MAX:,} more bytes)"


def test_a_flood_is_left_out_and_counted_and_holds_no_memory() -> None:
    output = TrainerOutput()
    flood = b"".join(b"line %07d\n" % number for number in range(100_000))
    shown = output.feed(flood, 0.0)
    assert shown == [f"line {number:07d}" for number in range(len(shown))]
    assert sum(map(len, shown)) < WINDOW_BYTES
    assert len(output.last_lines) == LINES_KEPT
    left_out = 100_000 - len(shown)
    note, line = output.feed(b"after\n", WINDOW_S)
    assert line == "after"
    assert note.startswith(f"p2psgd: {left_out:,} lines (1.2 MB) of the trainer's output are left out here")


def test_the_end_of_a_flood_is_there() -> None:
    output = TrainerOutput()
    shown = output.feed(b"spam\n" * 100_000, 0.0)
    assert output.feed(b"Traceback\nValueError: at last\n", 0.0) == []
    note, *last = output.end()
    assert note.startswith(f"p2psgd: {100_000 - len(shown) - LINES_KEPT + 2:,} lines ")
    assert last == ["spam"] * (LINES_KEPT - 2) + ["Traceback", "ValueError: at last"]


# ----------------------------------------------------------------------------
# Crashes, of real programs.


def crashed(program: str) -> tuple[list[str], int]:
    """The last lines of a Python program, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = TrainerOutput()
    output.feed(done.stdout, 0.0)
    output.end()
    return output.last_lines, done.returncode


def test_a_traceback_is_reported_with_its_cause_and_not_with_an_earlier_one() -> None:
    last, code = crashed("""
        import traceback
        try:
            raise KeyError("handled")
        except KeyError:
            traceback.print_exc()
        print("epoch 1")
        try:
            raise OSError("the cause")
        except OSError as error:
            raise ValueError("two\\nlines") from error
    """)
    report = crash_report(last)
    assert report[0] == "Traceback (most recent call last):"
    assert "OSError: the cause" in report
    assert report[-2:] == ["ValueError: two", "lines"]
    assert "epoch 1" not in report
    assert last_words(last, code) == "ValueError: two"


def test_an_exception_group_is_reported_whole() -> None:
    last, _ = crashed("""
        print("epoch 1")
        raise ExceptionGroup("both", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])
    """)
    report = crash_report(last)
    assert "Exception Group Traceback (most recent call last):" in report[0]
    assert any("KeyError: 'two'" in line for line in report)


def test_what_is_printed_at_the_exit_is_not_the_reason() -> None:
    last, code = crashed("import atexit; atexit.register(print, 'goodbye'); 1 / 0")
    assert last[-1] == "goodbye"
    assert last_words(last, code) == "ZeroDivisionError: division by zero"


def test_a_program_without_a_traceback_is_reported_by_its_last_lines() -> None:
    last, code = crashed("import sys; print('the config is wrong'); sys.exit('no key lr')")
    assert crash_report(last) == ["the config is wrong", "no key lr"]
    assert last_words(last, code) == "no key lr"


def test_what_p2psgd_prints_for_information_is_no_reason() -> None:
    last = ["epoch 3", "p2psgd train: on cuda:0", "p2psgd: each step is sent by itself"]
    assert last_words(last, -9) == last_words(last, 3) == "epoch 3"
    assert last_words(last[1:], -9) == last_words([], -9) == ""


def test_where_the_exit_code_is_one_of_p2psgd_its_sentence_is_the_reason() -> None:
    assert last_words(["epoch 3", "p2psgd: no recipe x"], ExitCode.USAGE) == "no recipe x"


TORCHRUN = """\
W1127 09:12:47 101 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 7 closing signal
E1127 09:12:47 101 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  exitcode  : {code:<8} (pid: 7)
============================================================
"""


@pytest.mark.parametrize("exit_code", [1, 78, -9])
def test_a_launcher_that_reports_a_failed_rank_is_seen_through(exit_code: int) -> None:
    script = ["Traceback (most recent call last):", "  File 'train.py'", "ValueError: no data"]
    printed = [f"[rank1]: {line}" for line in script]
    lines, code = without_launcher([*printed, *TORCHRUN.format(code=exit_code).splitlines()], 1)
    assert (lines, code) == (script, exit_code)
    if code == 1:
        assert last_words(lines, code) == "ValueError: no data"


def test_a_rank_that_was_killed_counts_more_than_those_that_failed_since_it_was_gone() -> None:
    both = TORCHRUN.format(code=-9) + TORCHRUN.format(code=1)
    assert without_launcher(both.splitlines(), 1) == ([], -9)


FAILURE = """\
[{place}]:
  time      : 2026-11-28_10:02:03
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code:<8} (pid: 7)
"""


@pytest.mark.parametrize(
    ("codes", "code", "reason"),
    [
        ({0: -15, 1: 1}, 1, "ValueError: my bug"),
        ({1: 1, 0: -15}, 1, "ValueError: my bug"),
        ({0: 1, 1: -9}, -9, ""),
        ({0: -15}, -15, "RuntimeError: gloo: connection closed by peer"),
    ],
)
def test_of_ranks_the_one_counts_that_failed_first_and_none_that_torchrun_has_ended(
    codes: dict[int, int], code: int, reason: str
) -> None:
    """The others lose their connections to it, and say so last."""
    printed = ["[rank0]: Traceback (most recent call last):"]
    printed.append("[rank0]: RuntimeError: gloo: connection closed by peer")
    if codes.get(1) == 1:
        printed[:0] = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: my bug"]
    report = TORCHRUN.split("Root Cause", maxsplit=1)[0] + "Root Cause (first observed failure):\n"
    report += "".join(
        FAILURE.format(place=place, rank=rank, code=codes[rank]) for place, rank in enumerate(codes)
    )
    lines, found = without_launcher([*printed, *report.splitlines()], 1)
    assert found == code
    assert last_words(lines, found) == reason


def test_a_rank_that_torchrun_has_killed_is_not_named_for_the_one_that_failed() -> None:
    """It had not ended at SIGTERM, and torchrun's report calls it a failure."""
    printed = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: my bug"]
    printed += TORCHRUN.splitlines()[:1]
    place = "W1127 09:13:17 101 torch/distributed/elastic/multiprocessing/api.py:1047]"
    printed.append(f"{place} Unable to shutdown process 8 via 15, forcefully exiting via 9")
    killed = FAILURE.format(place=1, rank=0, code=-9).replace("pid: 7", "pid: 8")
    report = TORCHRUN.split("Root Cause", maxsplit=1)[0] + killed + "Root Cause (first observed failure):\n"
    report += FAILURE.format(place=0, rank=1, code=1)
    lines, code = without_launcher([*printed, *report.splitlines()], 1)
    assert code == 1
    assert last_words(lines, code) == "ValueError: my bug"


def test_other_output_is_left_as_it_is() -> None:
    lines = ["exitcode : 3 (pid: 7)", "ValueError"]
    assert without_launcher(lines, 1) == (lines, 1)
    assert without_launcher(TORCHRUN.format(code=3).splitlines(), 0)[1] == 0
