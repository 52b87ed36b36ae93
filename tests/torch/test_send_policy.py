"""The trainer says how many steps it sends together when that is news, and seldom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX
from tests.torch.needed import p2psgd_torch

pytestmark = pytest.mark.long

SendPolicy: Any = p2psgd_torch.send_policy.SendPolicy
TOLD_MAX: int = p2psgd_torch.send_policy.TOLD_MAX
WINDOW: int = p2psgd_torch.send_policy.WINDOW


def policy(link: object, *, local_steps: int | None = None) -> Any:
    return SendPolicy(link, local_steps=local_steps, sent_part="about 1 % of 1,000 weights")


def make_steps(policy: Any, link: Any, *, sends: int, together: int) -> None:
    """Make steps whose links are free at each `together`-th one."""
    for number in range(sends * together):
        link.busy = (number + 1) % together != 0
        if not policy.waits():
            policy.note_send()


def test_after_the_first_steps_one_line_says_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    link = SimpleNamespace(busy=False, own_daemon=None)
    chosen = policy(link)
    make_steps(chosen, link, sends=WINDOW - 1, together=1)
    assert not capsys.readouterr().err
    make_steps(chosen, link, sends=10 * WINDOW, together=1)
    words = capsys.readouterr().err
    assert words.count("\n") == 1
    assert "each step is sent by itself, about 1 % of 1,000 weights" in words


def test_a_line_follows_when_links_become_slow_and_again_when_they_are_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = SimpleNamespace(busy=False, own_daemon=None)
    chosen = policy(link)
    make_steps(chosen, link, sends=2 * WINDOW, together=1)
    make_steps(chosen, link, sends=2 * WINDOW, together=7)
    make_steps(chosen, link, sends=2 * WINDOW, together=1)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == third
    assert "7 steps are sent together" in second


def test_however_often_links_change_there_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    link = SimpleNamespace(busy=False, own_daemon=None)
    chosen = policy(link)
    for _ in range(TOLD_MAX):
        make_steps(chosen, link, sends=WINDOW, together=1)
        make_steps(chosen, link, sends=WINDOW, together=9)
    assert capsys.readouterr().err.count("\n") == TOLD_MAX


def test_a_number_that_was_asked_for_is_kept_and_needs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = policy(SimpleNamespace(busy=False, own_daemon=None), local_steps=3)
    assert [chosen.waits() for _ in range(3)] == [True, True, False]
    for _ in range(3 * WINDOW):
        chosen.waits()
        chosen.note_send()
    assert not capsys.readouterr().err


def test_links_that_are_never_free_are_given_the_most_that_a_send_holds() -> None:
    chosen = policy(SimpleNamespace(busy=True))
    assert [chosen.waits() for _ in range(SEND_STEPS_MAX)] == [True] * (SEND_STEPS_MAX - 1) + [False]


def test_a_script_that_trains_alone_says_nothing_of_links(capsys: pytest.CaptureFixture[str]) -> None:
    link = SimpleNamespace(busy=False, own_daemon=object())
    make_steps(policy(link), link, sends=2 * WINDOW, together=1)
    assert not capsys.readouterr().err
