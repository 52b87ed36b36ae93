from __future__ import annotations

import json

import msgpack
import pytest

from p2psgd.ipc.protocol import ANSWER_BYTES_MAX, pack_answer
from p2psgd.observe.compression import TENSORS_MAX, Tally, describe_compression, describe_nodes
from p2psgd.observe.status import Compression
from tests.observe.compressions import WEIGHTS, description


def test_a_description_has_counts_and_ratios_for_json_and_messagepack() -> None:
    found = description()
    sent = found.model_dump()
    assert json.loads(found.model_dump_json()) == msgpack.unpackb(msgpack.packb(sent)) == sent
    assert Compression.model_validate(sent) == found
    total = found.total
    assert (total.updates, total.steps, total.indices) == (300, 300, 15_000)
    assert total.density == pytest.approx(50 / WEIGHTS)
    assert total.bits_per_index == pytest.approx(total.bits.total / 15_000)
    assert (found.recent.updates, found.tensors_total) == (200, 3)


def test_every_tensor_has_its_share_and_density() -> None:
    rows = description().tensors
    assert [(row.name, row.weights) for row in rows] == [
        ("hidden.weight", 8000),
        ("hidden.bias", 100),
        ("output.weight", 1900),
    ]
    assert sum(row.indices for row in rows) == 15_000
    assert sum(row.share or 0 for row in rows) == pytest.approx(1)
    for row in rows:
        assert row.density == pytest.approx(row.indices / (300 * row.weights))
        assert row.recent_density == pytest.approx(0.005, rel=0.5)
        assert row.threshold == 4_000


def test_nothing_is_divided_by_nothing() -> None:
    found = description(updates=0)
    assert (found.total.density, found.total.bits_per_index) == (None, None)
    assert {row.density for row in found.tensors} == {None}


def test_of_many_tensors_the_largest_are_described_in_order_and_fit_an_answer() -> None:
    many = 4096
    tensors = tuple((f"{place:04}" * 4, (place % 2 + 1,)) for place in range(many))
    found = describe_compression(Tally.empty(many), Tally.empty(many), tensors)
    assert found.tensors_total == many
    assert [row.name[:4] for row in found.tensors] == [f"{2 * i + 1:04}" for i in range(TENSORS_MAX)]
    longest = tuple(("n" * 200 + str(place), (2**31 // many,)) for place in range(many))
    full = Tally.empty(many)
    full.sums.update(dict.fromkeys(("indices", "updates", "steps", "header"), 2**60))
    full.tensor_indices += 2**60
    full.tensor_thresholds += 2**20
    assert (
        len(pack_answer({"compression": describe_compression(full, full, longest).model_dump()}))
        < ANSWER_BYTES_MAX
    )


def test_nodes_add_up() -> None:
    parts = [description(updates=300), description(updates=100, seed=2)]
    found = describe_nodes(parts, WEIGHTS)
    assert found is not None
    assert found.total.updates == 400
    assert found.total.density == pytest.approx(50 / WEIGHTS)
    for name, bits in found.total.bits.by_name().items():
        assert bits == sum(part.total.bits.by_name()[name] for part in parts)
    for row, *others in zip(found.tensors, *(part.tensors for part in parts), strict=True):
        assert row.indices == sum(other.indices for other in others)
        assert row.density == pytest.approx(row.indices / (400 * row.weights))
    assert sum(row.share or 0 for row in found.tensors) == pytest.approx(1)


def test_a_node_that_told_only_its_total_is_in_the_total_alone() -> None:
    whole = description()
    found = describe_nodes([whole, Compression(total=whole.total), None], WEIGHTS)
    assert found is not None
    assert found.total.updates == 600
    assert [row.density for row in found.tensors] == [row.density for row in whole.tensors]


@pytest.mark.parametrize("parts", [[], [None], [description(updates=0)]])
def test_nodes_without_updates_have_no_description(parts: list[Compression | None]) -> None:
    assert describe_nodes(parts, WEIGHTS) is None
