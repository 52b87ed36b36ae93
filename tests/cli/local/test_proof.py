from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.cli.local.verify import NodeReplica, prove
from p2psgd.wire import codec

KEY = 0x0123456789ABCDEF


def replica(node: str, coordinates: NDArray[np.int32], **changes: int) -> NodeReplica:
    digest = changes.get("digest", codec.digest_coordinates(coordinates, KEY))
    mode = "ring-dense" if changes.get("dense") else "async"
    return NodeReplica(node, mode, changes.get("quantum_log2", -20), digest, coordinates, len(coordinates))


@pytest.fixture
def coordinates() -> NDArray[np.int32]:
    return np.arange(-500, 500, dtype=np.int32)


def test_equal_bytes_and_digests_are_identical(coordinates: NDArray[np.int32]) -> None:
    proof = prove([replica(f"node-{i}", coordinates.copy()) for i in range(4)], KEY)
    assert proof.identical
    assert proof.digest == codec.digest_coordinates(coordinates, KEY)
    assert proof.findings == []
    assert [entry.node for entry in proof.groups[0]] == ["node-0", "node-1", "node-2", "node-3"]


def test_one_other_quantum_is_found_and_placed(coordinates: NDArray[np.int32]) -> None:
    other = coordinates.copy()
    other[[300, 700]] += 1
    proof = prove(
        [replica("node-0", coordinates), replica("node-1", other), replica("node-2", coordinates)], KEY
    )
    assert not proof.identical
    assert proof.digest is None
    assert proof.findings == [
        "node-1: the replica differs from that of node-0 and node-2 in 2 weights, "
        "first in weight 300: -199 instead of -200 quanta"
    ]


def test_one_other_weight_of_a_dense_ring_is_shown_with_its_bits() -> None:
    weights = np.array([0.5, -1.25, 0.0], np.float32)
    other = weights.copy()
    other[2] = -0.0
    proof = prove(
        [replica(f"node-{i}", each.view(np.int32), dense=1) for i, each in enumerate((weights, other))], KEY
    )
    assert proof.groups[0][0].weights.tobytes() == weights.tobytes()
    assert proof.findings == [
        "node-1: the replica differs from that of node-0 in 1 weight, "
        "first in weight 2: -0 (80000000) instead of 0 (00000000)"
    ]


def test_a_digest_that_is_not_of_the_bytes_is_found(coordinates: NDArray[np.int32]) -> None:
    proof = prove([replica("node-0", coordinates), replica("node-1", coordinates, digest=7)], KEY)
    assert not proof.identical
    found = codec.digest_coordinates(coordinates, KEY)
    assert proof.findings == [f"node-1 reports the digest 0000000000000007, its weights have {found:016x}"]


@pytest.mark.parametrize("quantum_log2", [-20, -19])
def test_replicas_of_two_runs_are_told_apart(coordinates: NDArray[np.int32], quantum_log2: int) -> None:
    other = coordinates if quantum_log2 == -19 else coordinates[:-1].copy()
    proof = prove([replica("node-0", coordinates), replica("node-1", other, quantum_log2=quantum_log2)], KEY)
    assert proof.findings == ["node-1: the replica belongs to another run than that of node-0"]


def test_weights_are_exact(coordinates: NDArray[np.int32]) -> None:
    weights = replica("node-0", coordinates * 16_384).weights
    assert weights.dtype == np.float32
    assert weights[0] == -500 * 16_384 / 2**20


def trained(node: str, coordinates: NDArray[np.int32], value: float | None, ended: str) -> NodeReplica:
    weights = None if value is None else np.full(coordinates.size, value)
    return replace(replica(node, coordinates), trained=weights, ended=ended)


def test_points_of_one_evaluation_are_compared_to_the_bit(coordinates: NDArray[np.int32]) -> None:
    same = [trained(node, coordinates, 0.5, "evaluation 7") for node in ("node-0", "node-1")]
    assert prove(same, KEY).identical
    proof = prove([same[0], trained("node-1", coordinates, np.nextafter(0.5, 1), "evaluation 7")], KEY)
    assert not proof.identical
    assert not proof.ended_apart


def test_points_of_two_evaluations_are_not_equal_and_it_is_said_why(coordinates: NDArray[np.int32]) -> None:
    ends = [("node-0", 0.5, "7"), ("node-1", 0.25, "6"), ("node-2", 0.5, "7"), ("node-3", 0.25, "6")]
    proof = prove([trained(node, coordinates, value, ended) for node, value, ended in ends], KEY)
    assert not proof.identical
    assert proof.digest is None
    assert proof.ended_apart
    assert proof.ends == "node-0 has 7, node-2 has 7, node-1 has 6 and node-3 has 6"
    [finding] = proof.findings
    assert finding.startswith(
        "the scripts have come to different ends: node-1 and node-3 to 6, node-0 and node-2 to 7; digests "
    )


@pytest.mark.parametrize(
    "ends",
    [
        [(0.5, "6"), (0.25, "7"), (-0.25, "7")],  # two of one evaluation differ, whatever comes first
        [(0.25, "7"), (0.5, "6"), (-0.25, "7")],
        [(0.25, "7"), (-0.25, "7"), (0.5, "6")],
        [(0.5, "evaluation 7"), (0.25, "weights of the script's own after evaluation 7")],
        [(0.5, "7"), (0.25, "")],
        [(0.5, "7"), (None, "")],
    ],
)
def test_nothing_else_is_excused(
    coordinates: NDArray[np.int32], ends: list[tuple[float | None, str]]
) -> None:
    replicas = [trained(f"node-{i}", coordinates, value, ended) for i, (value, ended) in enumerate(ends)]
    proof = prove(replicas, KEY)
    assert not proof.identical
    assert not proof.ended_apart
    assert proof.findings


def test_other_replicas_are_not_excused_by_other_ends(coordinates: NDArray[np.int32]) -> None:
    left, right = (trained(node, coordinates, 0.5, node) for node in ("node-0", "node-1"))
    assert prove([left, right], KEY).identical
    proof = prove([left, trained("node-1", coordinates + 1, 0.25, "node-1")], KEY)
    assert not proof.identical
    assert not proof.ended_apart


def test_nothing_to_compare_is_not_identical() -> None:
    assert not prove([], KEY).identical
