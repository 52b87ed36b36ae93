"""`python -m benchmarks.plan`, as somebody types it."""

from __future__ import annotations

import json

import pytest

from benchmarks import plan

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
    assert all(
        words in told for words in ("async", "ring, sparse", "ring, dense", "communication binds from")
    )
    assert all(len(line) <= 80 for line in told.splitlines())
    run(monkeypatch, *PAPER, "--density", "0.12%", "--batch", "1k", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [each["way"] for each in told] == ["async", "ring, sparse", "ring, dense"]
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
