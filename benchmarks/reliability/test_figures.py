"""Test the figures made from trainers' notes, without any trainer; the experiments themselves are run by
hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reliability import EXPERIMENTS, Report, owner_kill, page, power_cut
from benchmarks.reliability.notes import longest_gap_s, parse_notes, rate, travel_s
from benchmarks.reliability.probed_node import NOTE, read_notes
from p2psgd.recipes.telemetry import LOSS_MEMORY

HERE, THERE = "0000000000000001", "0000000000000002"


def test_notes_are_read_without_the_line_that_a_kill_has_torn(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    assert not parse_notes(path).sent
    path.write_text(f"s 1 10.00000 10.00100\na {THERE} 7 10.50000\ns 2 11.0")
    notes = parse_notes(path)
    assert notes.sent == {1: (10.0, 10.001)}
    assert notes.arrived == {(THERE, 7): 10.5}


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([0.5, 1.0, 1.5, 2.0], 0.5),
        ([0.5, 1.75, 2.0], 1.25),  # begun before the window
        ([0.9, 1.0, 1.25], 0.75),  # not over at its end
        ([0.5], 1.5),
    ],
)
def test_the_longest_gap_counts_what_begins_before_and_ends_after(times: list[float], gap: float) -> None:
    assert longest_gap_s(times, 1.0, 2.0) == gap


def test_the_rate_is_that_from_the_first_to_the_last() -> None:
    assert rate([0.0, 1.0, 1.5, 2.0, 3.0], 1.0, 2.5) == 2.0
    assert rate([1.0], 0.0, 2.0) == 0.0


def test_an_update_travels_from_its_send_to_the_note_of_the_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_text("s 1 10.0 10.1\ns 2 11.0 11.1\ns 3 12.0 12.1\n")
    there.write_text(f"a {HERE} 1 10.25\na {HERE} 2 11.5\n")
    notes = {HERE: parse_notes(here), THERE: parse_notes(there)}
    assert travel_s(notes, 10.0, 12.5) == [0.25, 0.5]
    assert travel_s(notes, 10.5, 12.5) == [0.5]


def test_a_probe_is_read_without_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    path.write_bytes(NOTE.pack(1.0, 0.25, 0.5) + NOTE.pack(2.0, 0.0, 0.0) + b"torn")
    assert read_notes(path, 0.5, 1.5).tolist() == [[1.0, 0.25, 0.5]]


def test_single_losses_are_got_back_out_of_their_running_mean() -> None:
    mean, segment = 5.0, [(0.0, 5.0)]
    for number in range(1, 41):
        mean += (2.0 - mean) / LOSS_MEMORY
        segment.append((float(number), mean))
    points = power_cut.recent(segment)
    assert [at for at, _ in points] == [8.0, 16.0, 24.0, 32.0, 40.0]
    assert [loss for _, loss in points] == pytest.approx([2.0] * 5)


def test_what_is_trained_again_is_drawn_after_what_was_made_before() -> None:
    before = [(0.0, 3.0), (10.0, 3.0), (20.0, 3.0)]
    after = [(12.0, 3.0), (22.0, 3.0)]
    segments = power_cut.in_order([before, after])
    assert [[at for at, _ in segment] for segment in segments] == [[10.0, 20.0], [30.0]]


def test_a_pause_does_not_count_in_which_the_node_itself_was_killed() -> None:
    ends = [9.5, 10.02, 18.0, 18.5, 20.0, 20.5]
    killed = [(10.0, 10.05, 3)]  # one more mini-batch ended before the kill was over
    assert owner_kill.gaps(ends, 10.0, 19.0, []) == pytest.approx([0.52, 7.98, 0.5, 1.5])
    assert owner_kill.gaps(ends, 10.0, 19.0, killed) == pytest.approx([0.5, 1.5])


def test_the_page_keeps_what_others_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "DATA", tmp_path / "data.json")
    page.PAGE.write_text(
        "".join(f"# {name}\n<!-- {name} -->\n<!-- end of {name} -->\n" for name in EXPERIMENTS)
    )
    for name, met in (("kill", True), ("flip", False), ("kill", None)):
        report = Report()
        report.add("a pause", "3 ms", "less", met)
        page.keep(name, report, (1.0, 2.0))
    text = page.PAGE.read_text()
    assert text.count("| a pause | 3 ms | less |") == 2
    assert text.count("**missed**") == 1
    assert text.startswith("# kill\n<!-- kill -->\n")
    assert list(json.loads(page.DATA.read_text())) == ["kill", "flip"]
    page.PAGE.write_text("nothing")
    with pytest.raises(ValueError, match="lacks the lines"):
        page.keep("kill", Report(), (1.0, 2.0))
