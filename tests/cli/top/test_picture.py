from __future__ import annotations

from typing import Any

import pytest

from p2psgd.cli.top_picture import WIDE, Picture, Rates, draw, own_waits
from p2psgd.observe.status import NodeStatus, read_status
from tests.observe.statuses import bare, fields, peer, ring, status

RATES = Rates(
    steps=41.2,
    sent=3.6e6,
    received=1.2e6,
    peers={"id-1": (400e3, 380e3)},
    updates={"00112233aabbccdd": 41.2, "id-1": 40.1},
)


def member(number: int, **changes: Any) -> dict[str, Any]:
    row = {"node": f"node-{number}", "id": f"id-{number}", "own": False, "linked": True, "ready": True}
    return {**row, "heard_s": 0.1, "lag": 0, **changes}


def of_many(nodes: int, **changes: Any) -> dict[str, Any]:
    """The fields of a ready node with so many ready peers."""
    peers = [peer(f"node-{number}", id=f"id-{number}", round_trip_ms=0.34) for number in range(1, nodes)]
    members = [{"own": True, "ready": True}, *(member(number) for number in range(1, nodes))]
    view = {"number": 3, "member": True, "members": members, "members_total": nodes, "waits": ""}
    recent = {"mini_batches": 100, "density": 0.0054, "bits_per_index": 9.75, "bits": {"sign": 1_200_000}}
    told: dict[str, Any] = {"compression": {"total": {}, "recent": recent}, "ready": True, "not_ready": ""}
    return fields(peers=peers, view=view, **told, **changes)


def text_of(
    told: dict[str, Any] | NodeStatus, *, width: int = 80, height: int | None = 24, **changes: Any
) -> list[str]:
    shown = told if isinstance(told, NodeStatus) else read_status(told)
    values = {"rates": RATES, "losses": [2.5, 2.4, 2.3], "waits": own_waits(shown), "clock": "12:03:04Z"}
    picture = Picture(shown, **{**values, **changes})
    lines = draw(picture, width=width, height=height)
    assert all(line.cell_len <= width for line in lines)
    assert height is None or len(lines) <= height
    return [line.plain for line in lines]


def test_all_that_matters_fits_into_80_columns_and_24_rows() -> None:
    assert text_of(of_many(3)) == [
        " node-0: training, ready, plaintext                     up 1 h 2 min  12:03:04Z ",
        "run         speech: async, 80,000 weights in 8 tensors, quantum 2^-20",
        "trainer     attached (pid 4712), mini-batch 1,000, loss 2.346, epoch 1.23",
        "updates     1,000 sent, 990 applied, 2 duplicates dropped, 12.00 bits per index",
        "traffic     9.0 MB sent, 8.0 MB received; loop lag 0.3 ms",
        "log         30 updates kept, 88.0 kB of at most 256.0 MB",
        "view        3, 3 members",
        "rates       41.2 steps/s, out 3.6 MB/s, in 1.2 MB/s",
        "loss        █▅▁  2.500 to 2.300",
        "",
        "node    state     updates/s  lag         out          in  round trip",
        "node-0  training       41.2    -           -           -           -",
        "node-1  ready          40.1    0  400.0 kB/s  380.0 kB/s     0.34 ms",
        "node-2  ready             -    0           -           -     0.34 ms",
    ]


@pytest.mark.parametrize("nodes", [1, 2, 30, 128])
@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5), (1, 1), (300, 3)])
def test_a_picture_is_never_larger_than_the_terminal(nodes: int, size: tuple[int, int]) -> None:
    told = of_many(nodes, waits="words " * 100, alarms=["alarm " * 50] * 9)
    told["peers"] = [{**each, "state": "lost", "error": "gone " * 50} for each in told["peers"]]
    assert text_of(told, width=size[0], height=size[1])


def test_of_many_nodes_those_that_need_a_person_are_shown_and_the_rest_is_counted() -> None:
    told = of_many(64)
    told["peers"][50] |= {"state": "lost", "since_s": 125.0, "error": "connection refused"}
    lines = text_of(told)
    place = next(number for number, line in enumerate(lines) if line.startswith("node-51 "))
    assert lines[place - 1].startswith("node-0")
    assert lines[place + 1] == "    gone for 2 min 5 s: connection refused"
    assert lines[-1] == "and 53 more: 53 ready"
    assert len(text_of(told, height=None)) == 10 + 1 + 64 + 1


def test_where_it_is_wide_the_sentence_stands_in_the_row() -> None:
    told = of_many(3)
    told["peers"][1] |= {"state": "suspect", "since_s": 8.0}
    (line,) = (line for line in text_of(told, width=WIDE) if line.startswith("node-2"))
    assert line.endswith("  has said nothing for 8 s")


def test_a_ring_shows_round_order_and_who_is_waited_for_and_no_lag() -> None:
    waits = {"waiting_for": "waits for node-2 to contribute to round 1,235", "since_s": 4.0}
    told = of_many(3, ring=ring(payload="sparse", **waits))
    words = "\n".join(text_of(told))
    assert "ring        node-0 > node-1 > node-2\nring        waits for node-2" in words
    assert "lag " not in words.replace("loop lag", "")
    dense = "\n".join(text_of(of_many(3, ring=ring(payload="dense"))))
    assert "updates" not in dense
    assert "bits per index" not in dense


def test_an_old_status_says_why_it_is_old_before_all_else() -> None:
    words = "the daemon is gone since 12:03:04Z (8 s), trying again"
    assert text_of(of_many(3), trouble=words)[0].strip() == f"node-0: {words}"


def test_alarms_and_damage_stand_at_the_end() -> None:
    lines = text_of(of_many(40, alarms=["the log is 93 % full, held back by node-1"]))
    assert lines[-1] == "alarm: the log is 93 % full, held back by node-1"


def test_what_peers_write_does_not_move_the_terminal() -> None:
    told = of_many(2, node="a\x1b[2Jb", alarms=["x\x1b]0;y\x07"], waits="tr\nain")
    told["peers"][0] |= {"node": "c\x1b[31m\u202e", "state": "lost", "error": "\x9b2J\r\n"}
    for line in text_of(told):
        assert line.isprintable()


def test_a_node_that_says_nearly_nothing_has_a_picture_too() -> None:
    assert text_of(bare("x"), rates=Rates(), losses=[])[0].startswith(" x: starting")
    assert "none yet: the first trainer brings it" in text_of(status(run=None))[1]


def test_a_terminal_without_such_characters_gets_no_bars() -> None:
    picture = Picture(read_status(of_many(3)), RATES, [3.0, 2.0], "")
    assert all(line.plain.isascii() for line in draw(picture, width=80, height=24, bars=False))


def test_wide_characters_count_as_two_columns() -> None:
    told = of_many(3, node="訓練" * 20)
    told["peers"][0] |= {"node": "节点" * 20, "state": "lost", "error": "错误" * 60}
    assert text_of(told)
