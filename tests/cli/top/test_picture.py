from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from p2psgd.cli.top import draw, fit
from p2psgd.observe.status import NodeStatus, read_status
from p2psgd.observe.text import Rates
from tests.observe.statuses import bare, fields, peer, ring, status

RATES: Rates = {
    "steps": 41.2,
    "sent": 3.6e6,
    "received": 1.2e6,
    "sent id-1": 400e3,
    "received id-1": 380e3,
    "updates id-1": 40.1,
}


def of_many(nodes: int, **changes: Any) -> dict[str, Any]:
    """The fields of a ready node with so many ready peers."""
    peers = [peer(f"node-{number}", id=f"id-{number}", round_trip_ms=0.34) for number in range(1, nodes)]
    others = [{"node": each["node"], "id": each["id"], "ready": True, "lag": 0} for each in peers]
    members = [{"own": True, "ready": True}, *others]
    view = {"number": 3, "member": True, "members": members, "members_total": nodes, "waits": ""}
    return fields(peers=peers, view=view, ready=True, not_ready="", **changes)


def text_of(told: dict[str, Any] | NodeStatus, *, width: int = 120, **changes: Any) -> list[str]:
    shown = told if isinstance(told, NodeStatus) else read_status(told)
    values: dict[str, Any] = {"rates": RATES, "losses": [2.5, 2.4, 2.3], "clock": "12:03:04Z"}
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(draw(shown, **{**values, **changes}))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_picture_in_full() -> None:
    assert text_of(of_many(3)) == [
        " node-0: training, ready, plaintext" + "up 1 h 2 min  12:03:04Z".rjust(84),
        "rates       41.2 steps/s, out 3.6 MB/s, in 1.2 MB/s",
        "loss        █▅▁  2.5 to 2.3",
        "run         speech: async, 80,000 weights in 8 tensors, quantum 2^-20",
        "trainer     attached (pid 4712), step 1,000, loss 2.346, epoch 1.23, 6,543 samples/s",
        "updates     1,000 sent, 990 applied, 2 duplicates dropped, 12.00 bits per index, compression 2133x",
        "traffic     9.0 MB sent, 8.0 MB received; loop lag 0.3 ms",
        "log         30 updates kept, 88.0 kB of at most 256.0 MB",
        "view        3, 3 members",
        "peers       2 connected",
        "peer        node-1: connected for 1 min 40 s, ready, lacks 0 updates, out 400.0 kB/s, in "
        "380.0 kB/s, 40.1 updates/s,",
        "            round trip 0.34 ms",
        "peer        node-2: connected for 1 min 40 s, ready, lacks 0 updates, round trip 0.34 ms",
    ]


@pytest.mark.parametrize("nodes", [1, 2, 30, 128])
@pytest.mark.parametrize("width", [300, 80, 20, 5, 1])
def test_a_picture_is_never_wider_than_the_terminal(nodes: int, width: int) -> None:
    told = of_many(nodes, waits="words " * 100, alarms=["alarm " * 50] * 9)
    told["peers"] = [{**each, "state": "lost", "error": "gone " * 50} for each in told["peers"]]
    assert all(len(line) <= width for line in text_of(told, width=width))


def test_of_many_nodes_those_that_need_a_person_come_first_and_all_are_counted() -> None:
    told = of_many(64)
    told["peers"][50] |= {"state": "lost", "since_s": 125.0, "error": "connection refused"}
    lines = text_of(told)
    place = lines.index("peers       62 connected, 1 lost")
    assert lines[place + 1].startswith("peer        node-51: lost for 2 min 5 s")
    assert lines[place + 1].endswith(", connection refused")
    assert lines[place + 2].startswith("peer        node-1: ")


def test_a_ring_shows_round_order_and_who_is_waited_for_and_no_lag() -> None:
    waits = {"waiting_for": "waits for node-2 to contribute to round 1,235", "since_s": 4.0}
    told = of_many(3, ring=ring(payload="sparse", **waits))
    words = "\n".join(text_of(told))
    assert "ring        node-0 > node-1 > node-2\nring        waits for node-2" in words
    dense = "\n".join(text_of(of_many(3, ring=ring(payload="dense"))))
    assert "updates" not in dense
    assert "bits per index" not in dense
    assert "lag " not in dense.replace("loop lag", "")


def test_an_old_status_says_why_it_is_old_before_all_else() -> None:
    words = "the daemon is gone since 12:03:04Z (8 s), trying again"
    assert text_of(of_many(3), trouble=words)[0].startswith(f" node-0: {words}")


def test_what_holds_the_node_up_and_its_alarms_stand_before_its_figures() -> None:
    told = of_many(40, waits="for node-1 to come back", alarms=["the log is 93 % full, held back by node-1"])
    told |= {"ready": False, "not_ready": "it takes a snapshot from node-1"}
    lines = text_of(told)
    assert lines[0].startswith(" node-0: training, not ready, plaintext")
    assert lines[3:5] == [
        "note        for node-1 to come back",
        "note        the log is 93 % full, held back by node-1",
    ]
    assert "not ready   it takes a snapshot from node-1" in lines


def test_what_peers_write_does_not_move_the_terminal() -> None:
    told = of_many(2, node="a\x1b[2Jb", alarms=["x\x1b]0;y\x07"], waits="tr\nain")
    told["peers"][0] |= {"node": "c\x1b[31m\u202e", "state": "lost", "error": "\x9b2J\r\n[bold]"}
    for line in text_of(told):
        assert line.isprintable()
    assert "[bold]" in "".join(text_of(told))


def test_a_node_that_says_nearly_nothing_has_a_picture_too() -> None:
    assert text_of(bare("x"), rates={}, losses=[])[0].startswith(" x: starting")
    assert "none yet: the first trainer brings it" in "".join(text_of(status(run=None)))


def test_a_terminal_without_such_characters_gets_no_bars() -> None:
    assert all(line.isascii() for line in text_of(of_many(3), bars=False))


def test_the_curve_of_many_losses_is_one_of_means() -> None:
    line = next(line for line in text_of(of_many(1), losses=list(range(600, 0, -1))) if "loss  " in line)
    assert line.split()[1].startswith("█") and line.split()[1].endswith("▁")  # noqa: PT018
    assert len(line.split()[1]) == 48
    assert line.endswith("600 to 1")


def test_wide_characters_count_as_two_columns() -> None:
    told = of_many(3, node="訓練" * 20)
    told["peers"][0] |= {"node": "节点" * 20, "state": "lost", "error": "错误" * 60}
    assert all(Console().measure(line).maximum <= 80 for line in text_of(told, width=80))


def test_a_picture_higher_than_the_terminal_ends_with_how_many_lines_are_left_out() -> None:
    shown = read_status(of_many(21))
    console = Console(width=80, height=12, file=io.StringIO(), record=True)
    console.print(fit(draw(shown, rates=RATES, losses=[], clock="12:03:04Z"), console))
    lines = console.export_text().splitlines()
    assert len(lines) == 12
    left_out = len(text_of(shown, width=80, losses=[])) - 11
    assert lines[-1] == f"... {left_out} more lines: p2psgd status"
