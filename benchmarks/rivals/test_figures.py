"""Test the figures made from notes, settings and runs, with numbers written down here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rivals.cases import Case
from benchmarks.rivals.figures import Note, NotesFile, Point, computing, crossing, pause, rate, steps_at
from benchmarks.rivals.job import Job
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.results import Results
from benchmarks.rivals.section import text
from benchmarks.rivals.tasks import GPT, SPEECH, TASKS
from benchmarks.rivals.verdicts import seconds, slow_loss, verdicts

WAYS = SPEECH.ways


def outcome(target_s: float | None, **others: object) -> Outcome:
    fields = {
        "setting": {"rate": 0.3},
        "target": 2.2,
        "target_s": target_s,
        "ran_s": 100.0,
        "samples": 50_000.0,
        "bytes_sent": 10**6,
        "step_s": 0.05,
        "step_bytes": 1000.0,
        "steps_per_s": [20.0, 20.0, 20.0, 5.0],
        "curve": [[1.0, 2560, 4.0], [2.0, 5120, 2.0]],
        "pauses_s": [],
        "words": "",
        "load": 0.1,
        "commit": "abc1234",
    }
    return Outcome(**{**fields, **others})  # type: ignore[arg-type]


def test_the_target_is_reached_on_the_line_between_two_snapshots() -> None:
    curve = [Point(1.0, 100.0, 3.0), Point(3.0, 500.0, 2.0), Point(4.0, 700.0, 1.0)]
    assert crossing(curve, 2.5) == Point(2.0, 300.0, 2.5)
    assert crossing(curve, 3.5) == curve[0]
    assert crossing(curve, 0.5) is None
    assert crossing([], 2.5) is None


def test_mini_batches_between_two_notes_are_made_evenly() -> None:
    notes = [Note(1.0, 10), Note(2.0, 30)]
    assert [steps_at(notes, at) for at in (0.0, 0.5, 1.0, 1.25, 9.0)] == [0.0, 5.0, 10.0, 15.0, 30.0]
    assert steps_at([], 1.0) == 0.0
    assert rate(notes, 0.0, 9.0) == 20.0
    assert rate(notes, 1.5, 9.0) == 0.0, "one note tells no rate"


def test_a_pause_is_counted_from_the_kill_to_the_mini_batch_that_ends_it() -> None:
    notes = [Note(at, 1) for at in (1.0, 7.9, 8.5, 14.5, 15.0)]
    assert pause(notes, 8.0, 20.0) == 6.0
    assert pause(notes, 15.0, 20.0) is None, "it made no mini-batch any more"
    assert pause(notes, 14.8, 60.0) is None, "one was under way at the kill, and then there was none"


def test_notes_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    job = Job(
        directory=str(tmp_path),
        host=2,
        addresses=("a", "b", "c"),
        task_name="speech",
        seed=1,
        setting={"rate": 0.5},
        options={},
    )
    assert Job.read(job.write()) == job
    assert job.task is SPEECH
    file = NotesFile(job.notes_path, 10.0)
    assert file.look() == []
    job.notes_path.write_text('{"at": 1, "ready": true}\n{"at": 11.5, "steps": 3}\n{"at": 12, "st')
    assert file.look() == [Note(1.5, 3)]
    assert file.ready
    with job.notes_path.open("a") as notes:
        notes.write('eps": 9, "snapshot": "w"}\n')
    assert file.look() == [Note(2.0, 9, "w")]
    assert file.notes == [Note(1.5, 3), Note(2.0, 9, "w")]


def test_the_first_setting_is_taken_that_is_nearly_the_soonest() -> None:
    way = WAYS["powersgd-1"]
    results = Results(
        SPEECH,
        search={
            way.name: [
                outcome(target_s, setting=dict(setting))
                for setting, target_s in zip(way.settings, (16.0, 10.4, 12.0, None, 10.0, 9.95), strict=False)
            ]
        },
    )
    assert results.best(way) == way.settings[1]
    results.search[way.name] = [
        outcome(None, setting=dict(setting), curve=[[1.0, 64, loss]])
        for setting, loss in zip(way.settings, (4.0, 3.0, 2.5), strict=False)
    ]
    assert results.best(way) == way.settings[2]
    assert results.best(WAYS["ddp"]) is None


def test_a_rival_that_did_not_arrive_gives_a_lower_bound_and_one_that_is_sooner_is_named(
    tmp_path: Path,
) -> None:
    results = Results(
        SPEECH,
        machine={"processors": "2 x some"},
        runs={
            Case(WAYS["p2psgd"], 100, 1).name: outcome(8.0),
            Case(WAYS["p2psgd"], 100, 2).name: outcome(12.0),
            Case(WAYS["ddp"], 100, 1).name: outcome(None),
            Case(WAYS["powersgd-1"], 100, 1).name: outcome(9.0),
            Case(WAYS["p2psgd"], 1000, 1).name: outcome(8.0),
            Case(WAYS["p2psgd"], 1000, fault="slow").name: outcome(9.0, steps_per_s=[19.0, 19.0, 19.0, 5.0]),
            Case(WAYS["ddp"], 100, fault="killed").name: outcome(None, pauses_s=[None] * 3, words="Reset."),
            Case(WAYS["p2psgd"], 100, fault="killed").name: outcome(7.0, pauses_s=[0.2] * 3),
            Case(WAYS["ddp-fp16"], 100, 1).name: outcome(None, ran_s=3.0, curve=[[1.0, 2560, 50.0]]),
        },
        why_not={"hivemind": "hivemind is not installed"},
        failed={"ddp 10 all 1": "not ready"},
    )
    results.write(tmp_path / "rivals.json")
    read = Results.read(SPEECH, tmp_path / "rivals.json")
    assert read == results
    assert json.loads((tmp_path / "rivals.json").read_text())["why_not"] == results.why_not
    assert str(seconds(read.of(WAYS["p2psgd"], 100))) == "10.0 (8.0 to 12.0)"
    assert str(seconds(read.of(WAYS["ddp"], 100))) == "> 100.0"
    assert slow_loss(read, WAYS["p2psgd"], 1000) == pytest.approx(0.05)
    lan, slow = verdicts(read)
    assert "at least 10.0 times as long (wanted 10: met)" in lan
    assert "**Sooner there: DDP, PowerSGD rank 1 (9.0 s).**" in lan, "and what diverged is not sooner"
    assert "Not measured there: DDP, PowerSGD rank 4; hivemind, 8 bits." in lan
    assert "the others make 5 % fewer mini-batches a second" in slow
    page = text(read)
    assert "| p2psgd, async | 9.0 | 8.0 | -5 % |" in page
    ended = "**for good**, **for good**, **for good**: Reset. | never: hosts ended after 100.0 | > 100.0"
    assert f"| DDP, float32 | {ended} |" in page
    assert "| p2psgd, async | 0.2, 0.2, 0.2 | 7.0, before the kill | 10.0 (8.0 to 12.0) |" in page
    assert "never: diverged after 3.0" in page
    assert "Failed when last tried: ddp 10 all 1: not ready." in page
    assert "hivemind, 8 bits: hivemind is not installed." in page
    needed = {case.name for case in SPEECH.cases if read.needed(case)}
    assert "ddp 100 all 2" not in needed, "the first seed did not reach the target"
    assert "powersgd-1 100 all 2" in needed
    assert not any("hivemind" in name for name in needed)
    assert f"Not measured yet with the best setting: {len(needed)} runs." in page
    read.search["powersgd-1"] = [outcome(40.0, setting={"rate": 0.15, "whole_steps": 2})]
    again = {case.name for case in SPEECH.cases if read.needed(case)} - needed
    assert again == {"powersgd-1 100 all 1"}, "a better setting was found since"


def test_p2psgd_that_does_not_arrive_has_missed_what_was_wanted_however_soon_it_ended() -> None:
    results = Results(
        SPEECH,
        runs={
            Case(WAYS["p2psgd"], 100, 1).name: outcome(None, ran_s=4.0, curve=[[1.0, 2560, 50.0]]),
            Case(WAYS["ddp"], 100, 1).name: outcome(90.0),
        },
    )
    (sentence,) = verdicts(results)
    assert "does not reach the target: never: diverged after 4.0 s (wanted: **missed**)" in sentence
    assert "**Sooner there: DDP, float32 (90.0 s).**" in sentence


def test_figures_of_another_machine_are_not_put_into_one_table() -> None:
    results = Results(SPEECH, machine={"processors": "2 x some", "hivemind": "not installed"})
    here = {"processors": "64 x other", "hivemind": "1.1"}
    assert results.of_another_machine(here) == "", "nothing is measured yet"
    results.runs[Case(WAYS["ddp"], 100).name] = outcome(90.0)
    assert "was measured with processors 2 x some, and here is processors 64 x other" in (
        results.of_another_machine(here)
    )
    assert results.of_another_machine({**here, "processors": "2 x some"}) == ""


def test_every_case_has_a_name_of_its_own() -> None:
    for task in TASKS.values():
        assert len({case.name for case in task.cases}) == len(task.cases)
    assert len({task.data for task in TASKS.values()}) == len(TASKS)


def test_the_rate_rises_with_the_samples_of_all_hosts_and_stays() -> None:
    rates = [SPEECH.rate(0.5, samples) for samples in (0, 10_000, 20_000, 99_999)]
    assert rates == pytest.approx([0.05, 0.275, 0.5, 0.5])


def test_the_time_in_which_a_host_computes_is_a_part_of_that_between_two_notes() -> None:
    notes = [Note(1.0, 10, computed_s=0.5), Note(2.0, 20, computed_s=1.0), Note(5.0, 50, computed_s=1.6)]
    assert computing(notes, 2.0, 9.0) == pytest.approx(0.2)
    assert computing(notes, 4.0, 9.0) is None, "one note tells nothing"
    assert computing([Note(1.0, 10), Note(2.0, 20)], 0.0, 9.0) is None, "it is not counted there"


def test_figures_of_speech_are_kept_as_they_were_before_there_was_another_task(tmp_path: Path) -> None:
    kept = Results.read(SPEECH)
    assert set(kept.runs) <= {case.name for case in SPEECH.cases}
    kept.write(tmp_path / "rivals.json")
    assert (tmp_path / "rivals.json").read_bytes() == SPEECH.data.read_bytes()


def test_the_page_of_the_gpt_has_its_faults_and_the_time_in_which_p2psgd_computes() -> None:
    ways = GPT.ways
    fields = {"target": 1.8, "setting": {"rate": 0.002}}
    results = Results(
        GPT,
        runs={
            Case(ways["p2psgd"], 10).name: outcome(80.0, computing=0.84, **fields),
            Case(ways["p2psgd"], 100).name: outcome(70.0, computing=0.9, **fields),
            Case(ways["ddp"], 10).name: outcome(None, ran_s=900.0, **fields),
            Case(ways["ddp"], 100).name: outcome(300.0, **fields),
            Case(ways["ddp-8"], 10).name: outcome(640.0, **fields),
            Case(ways["p2psgd"], 100, fault="delayed").name: outcome(77.0, step_s=0.06, **fields),
            Case(ways["ddp"], 100, fault="delayed").name: outcome(None, step_s=0.6, **fields),
        },
    )
    page = text(results)
    assert page.startswith("### A byte-level GPT with AdamW")
    assert (
        "- At 10 Mbit/s p2psgd, async, takes 80.0 s, and DDP, float32, takes at least 11.2 times as long. The"
        " fastest alternative, DDP, float32, 8 batches accumulated, takes 8.0 times as long." in page
    )
    assert "p2psgd, async, computes for a part of the time, 84 % at 10 Mbit/s, 90 % at 100 Mbit/s" in page
    assert "| DDP, float32 | > 100.0 | 300.0 | 600 | 50 |" in page
    assert "| p2psgd, async | 77.0 | 70.0 | 60 | 50 |" in page
    assert "SIGKILL" not in page
    assert "a round trip" in page
