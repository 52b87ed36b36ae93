"""`python -m benchmarks.plan`, as somebody types it."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import plan
from benchmarks.plan import ON_GPU, predict_torch
from benchmarks.scaling.model import Part, Setting, Way, predict
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "plan.md"
PAPER = ("--weights", "14.6M", "--nodes", "8", "--bandwidth", "1Gbit", "--step-time", "150ms")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["plan", *arguments])
    plan.main()


def test_it_tells_each_way_of_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(monkeypatch, *PAPER, "--density", "1/850")
    told = capsys.readouterr().out
    assert "14,600,000 weights on 8 nodes, links of 1,000 Mbit/s, 150 ms" in told
    assert all(words in told for words in ("async", "rounds", "sparse", "dense", "communication binds from"))
    assert all(len(line) <= 80 for line in told.splitlines())
    run(monkeypatch, *PAPER, "--density", "0.12%", "--batch", "1k", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [each["way"] for each in told] == [
        *("async", "owners", "owners, rounds", "ring, sparse", "ring, dense"),
        "async, p2psgd.torch",
    ]
    assert told[0]["samples_per_s"] == pytest.approx(1000 * told[0]["steps_per_s"])
    assert told[0]["update_indices"] == 17_520


@pytest.mark.parametrize(
    "given",
    [
        ("--weights=14,600,000", "--bandwidth=1,000 Mbit/s", "--step-time=150 ms", "--batch=1,024"),
        ("--weights=14_600_000", "--bandwidth=1Gb", "--step-time=0.15s", "--batch=1024"),
    ],
)
def test_it_takes_what_it_prints_and_what_people_write(
    given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--nodes", "8", *given)
    assert " ".join(capsys.readouterr().out.split()).startswith(
        "14,600,000 weights on 8 nodes, links of 1,000 Mbit/s, 150 ms to compute a mini-batch of 1,024"
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--weights", "14.6", "--weights: '14.6' is no whole number"),
        ("--weights", "many", "--weights: 'many' is not a number such as 800k or 14.6M"),
        ("--weights", "14,6", "--weights: '14,6' is not a number such as 800k or 14.6M"),
        ("--step-time", "0,150s", "--step-time: '0,150s' is not a time with its unit"),
        ("--bandwidth", "100MB", "--bandwidth: '100MB' is in bytes: give bits per second"),
        ("--bandwidth", f"{'9' * 400}bit", "--bandwidth: '99999999999999999999'... is beyond all numbers"),
        ("--failure-timeout", "601", "601.0 seconds of failure timeout cannot be: give 0.2 to 600"),
        ("--bandwidth", "100", "--bandwidth: '100' is not bits per second, such as 100Mbit"),
        ("--step-time", "150", "--step-time: '150' is not a time with its unit, such as 150ms"),
        ("--density", "1/0", "--density: '1/0' divides by nothing"),
        ("--local-steps", "0", "0 local steps cannot be: give 1 to 1,000"),
        ("--local-steps", "1001", "1,001 local steps cannot be: give 1 to 1,000"),
        ("--local-steps", "1.5", "--local-steps: '1.5' is no whole number"),
        ("--nodes", "0", "0 nodes cannot be: give 1 to 1,024"),
    ],
)
def test_what_it_cannot_read_it_refuses_with_the_option(
    option: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *PAPER, option, value)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


# GPT-2 small on four machines with a GPU each
GPT = Setting(weights=124_000_000, nodes=4, link_bit_per_s=1e8, computing_s=0.2, density=0.01)


def at(mbit: float, setting: Setting = GPT) -> Setting:
    return replace(setting, link_bit_per_s=1e6 * mbit)


def test_a_link_with_room_gets_each_step_by_itself_and_a_slow_one_sums_that_fill_it() -> None:
    fast, slow, slower = (predict_torch(at(mbit), costs=ON_GPU) for mbit in (1000, 100, 10))
    assert fast.steps_of_send == 1
    assert fast.link_share < 0.2
    assert 1 < slow.steps_of_send < 2
    assert (slow.link_share, slower.link_share) == pytest.approx((1, 1))
    assert slower.steps_of_send == pytest.approx(10 * slow.steps_of_send, rel=0.3)
    assert slower.bottleneck is Part.COMPUTING
    assert slower.compression == pytest.approx(fast.compression * slower.steps_of_send)
    assert slower.sent_bytes == pytest.approx(fast.sent_bytes / slower.steps_of_send, rel=0.01)


def test_the_slower_the_link_the_larger_is_the_part_of_the_time_for_computing() -> None:
    shares = [predict_torch(at(mbit)).computing_share for mbit in (1000, 100, 10, 1)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.95
    step_s = predict(Way.ASYNC, at(10)).step_s  # of a trainer that waits
    assert step_s > 10 * predict_torch(at(10)).step_s


@pytest.mark.parametrize("mbit", [0.1, 1, 3, 10, 30, 100, 300])
@pytest.mark.parametrize("nodes", [2, 4, 32])
def test_steps_that_are_added_up_take_as_long_as_the_link_needs_for_a_send(mbit: float, nodes: int) -> None:
    setting = at(mbit, replace(GPT, nodes=nodes, weights=1_000_000, failure_timeout_s=600))
    link_s = predict(Way.ASYNC, setting).parts[Part.NETWORK]
    found = predict_torch(setting)
    send_s = found.step_s * found.steps_of_send
    assert send_s == pytest.approx(link_s) or (send_s > link_s and found.steps_of_send == 1)


def test_beyond_the_steps_that_a_send_holds_a_trainer_waits() -> None:
    setting = replace(GPT, computing_s=1e-3, link_bit_per_s=2e5)
    found = predict_torch(setting, costs=ON_GPU)
    assert found.steps_of_send == SEND_STEPS_MAX
    assert found.bottleneck is Part.NETWORK
    assert found.step_s == pytest.approx(predict(Way.ASYNC, setting).step_s / SEND_STEPS_MAX)


def test_local_steps_that_are_given_are_kept_though_the_link_waits_or_is_full() -> None:
    few, many = (predict_torch(at(10), local_steps) for local_steps in (2, 50))
    assert (few.steps_of_send, many.steps_of_send) == (2, 50)
    assert few.bottleneck is Part.NETWORK
    assert few.step_s == pytest.approx(predict(Way.ASYNC, at(10)).step_s / 2)
    assert many.bottleneck is Part.COMPUTING
    assert many.link_share < 0.5


def test_one_node_sends_nothing_and_still_passes_over_its_weights() -> None:
    found = predict_torch(replace(GPT, nodes=1))
    assert (found.steps_of_send, found.sent_bytes, found.link_share) == (1, 0, 0)
    assert found.computing_share < predict_torch(replace(GPT, nodes=1), costs=ON_GPU).computing_share < 1


def test_more_than_half_of_what_a_send_has_room_for_is_not_aimed_at() -> None:
    assert predict_torch(replace(GPT, density=0.06)).setting.density == 1 / 32
    assert predict_torch(replace(GPT, density=0.03)).setting.density == 0.03


def test_the_density_is_that_of_attach() -> None:
    pytest.importorskip("torch")
    attach = importlib.import_module("p2psgd.torch.attach")
    numerator, denominator = map(float, plan.DENSITY.split("/"))
    assert numerator / denominator == attach.DENSITY


def test_it_shows_what_torch_does_by_itself_beside_local_steps_that_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    gpt = ("--weights", "124M", "--nodes", "4", "--bandwidth", "100Mbit", "--step-time", "200ms", "--gpu")
    run(monkeypatch, *gpt, "--local-steps", "8")
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "by itself local_steps=8" in rows
    assert "a send holds 1.46 steps 8 steps" in rows
    assert "trainers compute 80 % of the time 96 % of the time" in rows
    assert "Memory of a node beside model and optimizer: 4.2 GB. A weight takes 8.5 bytes" in rows
    run(monkeypatch, *gpt, "--local-steps", "8", "--json")
    by_itself, given = json.loads(capsys.readouterr().out)[5:]
    assert (by_itself["local_steps"], given["local_steps"]) == (None, 8)
    assert given["steps_per_send"] == 8
    assert by_itself["update_indices"] == 1_240_000
    assert by_itself["computing_share"] == pytest.approx(0.2 / by_itself["step_s"])
    assert by_itself["memory_bytes_per_weight"] == {"trainer": 8.5, "daemon": 13, "shared": 12.5}


def test_the_page_shows_what_its_commands_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    blocks = re.findall(r"```\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    _, *examples = blocks
    assert len(examples) == 4
    for command, table in zip(examples[::2], examples[1::2], strict=True):
        run(monkeypatch, *shlex.split(command.partition("benchmarks.plan ")[2]))
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert table in "\n".join(lines)
