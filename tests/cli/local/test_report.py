from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from p2psgd.cli.local.report import Outcome, build_report, lost_sentence, summary_text, write_report
from p2psgd.observe.status import Compression
from tests.observe.compressions import description
from tests.observe.statuses import bare, ring, split, status, trainer
from tests.observe.statuses import lost as gone

ROOT = Path(__file__).parents[3]
KEYS = (
    "nodes mode rounds rounds_per_s step weights quantum wall_s bits_per_index compression_ratio compression "
    "replicas_identical ended_apart digest test_accuracy per_node lost recipe trainer"
)
NODE_KEYS = (
    "node steps steps_per_s samples samples_per_s updates_sent updates_applied indices_sent bytes_sent "
    "bytes_received loss test_accuracy digest frontier bytes_sent_per_round step"
)


def outcome(**changes: Any) -> Outcome:
    names = ("node-0", "node-1")
    values: dict[str, Any] = {
        "statuses": [status(name) for name in names],
        "wall_s": 75.4321,
        "speeds": {"node-0": 6_400.0, "node-1": None},
        "recipe": "speech",
        "identical": True,
        "digest": 0xABC,
        "digests": dict.fromkeys(names, 0xABC),
        "accuracies": dict.fromkeys(names, 0.52),
    }
    return Outcome(**values | changes)


def test_a_good_run_has_every_figure() -> None:
    report = build_report(outcome())
    assert " ".join(report) == KEYS
    assert (report["nodes"], report["mode"], report["weights"]) == (2, "async", 80_000)
    assert report["quantum"] == 2.0**-20
    assert report["compression_ratio"] == pytest.approx(32 * 80_000 * 2_000 / (8 * 300_000))
    assert report["bits_per_index"] == pytest.approx(12)
    assert (report["replicas_identical"], report["digest"]) == (True, "0000000000000abc")
    assert report["test_accuracy"] == 0.52
    assert (report["recipe"], report["lost"]) == ("speech", [])


def test_the_page_of_the_report_has_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "report.md").read_text()
    _, *sections = page.split("## ")
    run, node = (
        {
            key
            for row in section.splitlines()
            if row.startswith("| `")
            for key in re.findall(r"`(\w+)`", row.split("|")[1])
        }
        for section in sections
    )
    report = build_report(outcome(parts=2, part_digests=[1, 2]))
    assert run == set(report)
    assert node == set(report["per_node"][0])


def test_a_script_is_named_and_all_nodes_have_a_row() -> None:
    report = build_report(outcome(recipe=None, trainer="python train.py"))
    lines = summary_text(report).splitlines()
    assert lines[0] == "2 nodes ran python train.py (80,000 weights, async mode) in 1 min 15 s"
    assert lines[4].split()[:4] == ["all", "2,000", "512,000", "6,400"]


def test_counts_that_do_not_fit_are_shortened() -> None:
    many = trainer(steps=10**11, samples=10**10)
    lines = summary_text(build_report(outcome(statuses=[status("node-0", trainer=many)]))).splitlines()
    assert lines[2].split()[:3] == ["node-0", "100G", "10.0G"]


def test_every_node_has_its_own_figures() -> None:
    first, second = build_report(outcome())["per_node"]
    assert set(NODE_KEYS.split()) <= set(first)
    assert (first["node"], second["node"]) == ("node-0", "node-1")
    assert (first["steps"], first["samples"], first["updates_sent"]) == (1_000, 256_000, 1_000)
    assert (first["bytes_sent"], first["bytes_received"]) == (9_000_000, 8_000_000)
    assert (first["samples_per_s"], second["samples_per_s"]) == (6_400.0, None)
    assert first["frontier"][0]["sequence"] == 1_000
    assert (first["duplicates"], first["dropped"]) == (2, {})


def test_compression_is_of_all_nodes_and_its_tensors_of_those_that_could_be_asked() -> None:
    own = description(updates=100)
    short = Compression(total=own.total, recent=own.recent)
    report = build_report(
        outcome(
            statuses=[status("node-0", compression=short), status("node-1", compression=short)],
            compression={"node-0": own, "node-1": None},
        )
    )
    assert report["compression"]["total"]["updates"] == 200
    assert [row["indices"] for row in report["compression"]["tensors"]] == [
        row.indices for row in own.tensors
    ]
    assert summary_text(report).splitlines()[-1] == "density        0.0625 % of the weights changed by a step"


def test_the_last_words_of_a_lost_node_are_shown_once() -> None:
    why = "ended with exit code 78: this node takes part in another run: delete its state"
    lost = outcome(statuses=[status("node-0"), gone("node-1")], lost={"node-1": why})
    report = build_report(lost)
    assert f"node-1: lost ({why})" in summary_text(report).splitlines()
    assert lost_sentence(report).startswith("node-1 was lost (ended with exit code 78); ")


def test_a_lost_node_is_named_and_has_no_digest() -> None:
    lost = outcome(
        statuses=[status("node-0"), gone("node-1")],
        lost={"node-1": "killed by signal 9"},
        digests={"node-0": 0xABC},
        accuracies={"node-0": 0.52},
    )
    report = build_report(lost)
    assert report["lost"] == [{"node": "node-1", "why": "killed by signal 9"}]
    assert [node["digest"] for node in report["per_node"]] == ["0000000000000abc", None]
    assert report["test_accuracy"] == 0.52


def test_replicas_that_differ_have_no_common_accuracy() -> None:
    report = build_report(outcome(identical=False, digest=None, accuracies={"node-0": 0.52, "node-1": 0.51}))
    assert (report["replicas_identical"], report["digest"], report["test_accuracy"]) == (False, None, None)
    assert [node["test_accuracy"] for node in report["per_node"]] == [0.52, 0.51]


def test_nodes_that_never_spoke_give_nulls() -> None:
    report = build_report(
        Outcome(statuses=[bare("node-0")], wall_s=1.0, recipe=None, lost={"node-0": "killed by signal 9"})
    )
    assert (report["mode"], report["quantum"], report["compression_ratio"]) == (None, None, None)
    assert report["replicas_identical"] is False


def test_the_file_is_json_without_nan(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older report")
    write_report(path, build_report(outcome()) | {"wall_s": math.nan, "per_node": [{"loss": math.inf}]})
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (report["wall_s"], report["per_node"]) == (None, [{"loss": None}])
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older report")
    with pytest.raises(TypeError):
        write_report(path, {"nodes": object()})
    assert path.read_text() == "an older report"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_the_summary_of_a_good_run() -> None:
    assert summary_text(build_report(outcome())).splitlines() == [
        "2 nodes trained recipe speech (80,000 weights, async mode) in 1 min 15 s",
        "node           steps   samples samples/s     out      in     sent received  loss",
        "node-0         1,000   256,000     6,400   1,000     990   9.0 MB   8.0 MB 2.346",
        "node-1         1,000   256,000         -   1,000     990   9.0 MB   8.0 MB 2.346",
        "all            2,000   512,000     6,400   2,000   1,980  18.0 MB  16.0 MB 2.346",
        "replicas       both identical, byte by byte, digest 0000000000000abc",
        "test accuracy  52.00 %",
        "compression    2133x against float32 gradients, 12.00 bits per index, headers included",
    ]


def test_the_summary_names_what_went_wrong_on_a_node() -> None:
    troubled = status("node-1", trainer=trainer(restarts=1), dropped={"crc": 3})
    text = summary_text(build_report(outcome(statuses=[status(), troubled])))
    assert "\nnode-1: 1 trainer restart, dropped 3 x crc\n" in text


def test_the_summary_shows_the_first_alarm_of_a_node_and_the_number_of_others() -> None:
    nodes = [
        status(),
        status("node-1", alarms=("one\x1b[2J",)),
        status("node-2", alarms=("one", "two", "three")),
    ]
    report = build_report(outcome(statuses=nodes))
    assert [node["alarms"] for node in report["per_node"]][1:] == [["one\x1b[2J"], ["one", "two", "three"]]
    text = summary_text(report)
    assert "\nnode-1: alarm: one" in text
    assert "\x1b" not in text
    assert "\nnode-2: alarm: one; 2 more alarms\n" in text
    assert "node-0: alarm" not in text


def test_the_summary_says_where_scripts_ended_whose_weights_were_not_compared() -> None:
    report = build_report(outcome(ends=["node-0 has this and node-1 has that"], digest=None))
    text = summary_text(report)
    assert "identical, but trained weights are of different moments: only those of one were compared" in text
    assert "byte by byte" not in text
    assert "\nnot compared: node-0 has this and node-1 has that\n" in text


def test_a_ring_has_rounds_and_a_step_is_split() -> None:
    fast, slow = split(), split(timed_steps=500, waiting_s=8.0)
    parts = [
        status(name, ring=ring(round=1_000), trainer=trainer(**steps))
        for name, steps in (("node-0", fast), ("node-1", slow))
    ]
    report = build_report(outcome(statuses=parts))
    assert (report["rounds"], report["rounds_per_s"]) == (1_000, pytest.approx((100 + 100 / 3) / 2, abs=1e-3))
    assert report["step"]["steps"] == 1_500
    assert [node["bytes_sent_per_round"] for node in report["per_node"]] == [9_000.0, 9_000.0]
    assert [node["step"]["step_ms"] for node in report["per_node"]] == [10.0, 30.0]
    text = summary_text(report)
    assert "\nrounds         1,000, 66.7 a second, 9.0 kB sent by a node in each\n" in text
    assert "\nstep           17 ms: computing 48 %, waiting 44 %, adding 2 %, sending 6 %\n" in text


def test_an_asynchronous_run_has_no_rounds_but_a_split() -> None:
    report = build_report(outcome(statuses=[status(trainer=trainer(**split())), status("node-1")]))
    assert (report["rounds"], report["rounds_per_s"]) == (None, None)
    assert report["per_node"][0]["bytes_sent_per_round"] is None
    assert "rounds  " not in summary_text(report)
    assert "step           10 ms: computing 60 %" in summary_text(report)


@pytest.mark.parametrize(
    ("nodes", "lost", "identical", "sentence"),
    [
        (4, ["node-2"], True, "node-2 was lost (killed by signal 9); the other 3 replicas are identical"),
        (2, ["node-1"], True, "node-1 was lost (killed by signal 9); the other replica is whole"),
        (3, ["node-1"], False, "node-1 was lost (killed by signal 9); the other replicas are not identical"),
        (1, ["node-0"], False, "node-0 was lost (killed by signal 9); no replica is left"),
        (
            4,
            ["node-0", "node-3"],
            True,
            "node-0 was lost (killed by signal 9) and node-3 was lost (killed by signal 9); "
            "the other 2 replicas are identical",
        ),
    ],
)
def test_losses_are_one_sentence(nodes: int, lost: list[str], identical: bool, sentence: str) -> None:
    report = build_report(
        outcome(
            statuses=[status(f"node-{i}") for i in range(nodes)],
            lost=dict.fromkeys(lost, "killed by signal 9"),
            identical=identical,
        )
    )
    assert lost_sentence(report) == sentence


def test_where_nobody_counts_samples_there_are_steps_per_second() -> None:
    script = trainer(samples=0, samples_per_s=0.0, epoch=0.0)
    nodes = [status(name, trainer=script) for name in ("node-0", "node-1")]
    report = build_report(outcome(statuses=nodes, speeds={}, paces={"node-0": 12.5, "node-1": None}))
    rows = [line.split()[:4] for line in summary_text(report).splitlines()[1:5]]
    assert rows == [
        ["node", "steps", "steps/s", "out"],
        ["node-0", "1,000", "12.5", "1,000"],
        ["node-1", "1,000", "-", "1,000"],
        ["all", "2,000", "12.5", "2,000"],
    ]


def test_of_a_node_that_alone_reports_no_samples_none_are_shown() -> None:
    script = trainer(samples=0, samples_per_s=0.0, epoch=0.0)
    nodes = [status("node-0", trainer=script), status("node-1")]
    report = build_report(outcome(statuses=nodes, speeds={}))
    row = next(row for row in summary_text(report).splitlines() if row.startswith("node-0"))
    assert row.split()[1:4] == ["1,000", "-", "-"]
