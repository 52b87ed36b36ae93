from __future__ import annotations

from p2psgd.observe.compression import (
    ADVICE,
    Tally,
    bits_of,
    describe_compression,
    fraction,
    render_compression,
    tensor_rows,
)
from p2psgd.observe.status import BitCounts, UpdateSums
from tests.observe.compressions import description


def test_a_nodes_own_updates_in_full() -> None:
    first, bits, latest, _, empty, *rows = render_compression(description()).splitlines()
    assert first.startswith("all updates   300 in 300 steps, density 0.5 %, ")
    assert bits.startswith("              = ")
    assert bits.endswith("; signs coded in 100 % of the blocks")
    assert latest.startswith("the latest    200 in 200 steps, density 0.5 %, ")
    assert empty == rows[4] == ""
    assert rows[0] == "tensor         weights  indices   share  density   recent  threshold"
    assert [row.split()[:2] for row in rows[1:4]] == [
        ["hidden.weight", "8,000"],
        ["hidden.bias", "100"],
        ["output.weight", "1,900"],
    ]
    assert all(row.endswith("4,000") for row in rows[1:4])
    assert "\n".join(rows[5:]) == ADVICE


def test_the_parts_of_an_index_add_up() -> None:
    found = description()
    first, second = render_compression(found).splitlines()[:2]
    figures = [float(part.split()[0]) for part in second.strip(" =").split(";")[0].split(" + ")]
    assert abs(sum(figures) - float(first.split()[-4])) < 0.03
    assert "dense" not in second


def test_updates_without_blocks_say_nothing_of_their_signs() -> None:
    total = UpdateSums(updates=2, dense_updates=2, indices=8, blocks=0, bits=BitCounts(dense=16))
    assert bits_of(total) == "2.00 dense, 100 % of the updates dense"


def test_there_is_no_second_line_while_all_updates_are_recent() -> None:
    assert "the latest" not in render_compression(description(updates=150))


def test_a_node_without_updates_says_so() -> None:
    for nothing in (None, description(updates=0)):
        assert render_compression(nothing) == "this node has made no update yet"


def test_the_largest_tensors_are_shown_in_order_and_the_others_counted() -> None:
    tensors = tuple((f"tensor.{place}", (1 + place % 7,)) for place in range(300))
    lines = tensor_rows(describe_compression(Tally.empty(300), Tally.empty(300), tensors))
    assert len(lines) == 52
    assert lines[-1] == "and 250 smaller tensors"
    places = [int(line.split()[0].removeprefix("tensor.")) for line in lines[1:-1]]
    assert places == sorted(places)
    assert all(place % 7 >= 5 for place in places)


def test_names_are_cut_at_their_beginning_and_escaped() -> None:
    tensors = (("\x1b[31m" + "deep." * 20 + "weight", (3,)),)
    name = tensor_rows(describe_compression(Tally.empty(1), Tally.empty(1), tensors))[1].split()[0]
    assert name.startswith("...")
    assert name.endswith("deep.weight")
    assert len(name) == 40
    short = tensor_rows(describe_compression(Tally.empty(1), Tally.empty(1), (("\x1b[m", (3,)),)))[1]
    assert short.startswith("\\x1b[m ")


def test_fractions_have_three_digits_that_matter() -> None:
    assert [fraction(value) for value in (None, 0.0, 1.0, 0.123456, 0.000456789)] == [
        "-",
        "0 %",
        "100 %",
        "12.3 %",
        "0.0457 %",
    ]
