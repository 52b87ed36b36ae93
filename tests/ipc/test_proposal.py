from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import PIECE_WEIGHTS, choose_mode, measure_quantum, propose

QUANTUM = 2.0**-20


def test_weights_are_rounded_to_the_nearest_quantum_in_the_order_of_the_mapping() -> None:
    initial = {
        "b": np.array([1.0, -0.5, 0.6 * QUANTUM], dtype=np.float32),
        "a": np.array([[2.5 * QUANTUM, -3.5 * QUANTUM]]),
    }
    proposal, coordinates = propose(initial, quantum=QUANTUM, label="x")
    assert proposal.tensors == (("b", (3,)), ("a", (1, 2)))
    assert (proposal.quantum_log2, proposal.mode, proposal.label, proposal.weights) == (-20, "async", "x", 5)
    assert coordinates.dtype == np.int32
    assert coordinates.tolist() == [2**20, -(2**19), 1, 2, -4]  # halves to even


def test_a_single_array_is_one_tensor_of_its_shape() -> None:
    proposal, coordinates = propose(np.ones((2, 3), dtype=np.float32).T, quantum=1.0, label="")
    assert proposal.tensors == (("weights", (3, 2)),)
    assert coordinates.tolist() == [1] * 6


def test_rounding_in_pieces_reaches_every_weight() -> None:
    values = np.arange(PIECE_WEIGHTS + 3, dtype=np.float32)
    assert np.array_equal(propose(values, quantum=1.0, label="")[1], values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 8.1, -8.1, 1e300])
def test_a_weight_that_the_lattice_cannot_hold_is_named(bad: float) -> None:
    values = np.zeros(PIECE_WEIGHTS + 5)
    values[PIECE_WEIGHTS + 2] = bad
    with pytest.raises(
        TrainerError, match=rf"weight {PIECE_WEIGHTS + 2} of tensor 'w' is .* within \+-8, 2\*\*23"
    ):
        propose({"w": values}, quantum=QUANTUM, label="")
    assert propose({"w": np.array([8.0, -8.0])}, quantum=QUANTUM, label="")[1].tolist() == [2**23, -(2**23)]


@pytest.mark.parametrize("bad", [[1, 2], [True], ["x"], [1j], [None]])
def test_anything_but_floating_point_is_refused(bad: list[Any]) -> None:
    with pytest.raises(TrainerError, match="initial weights are float32 arrays"):
        propose({"w": bad}, quantum=QUANTUM, label="")


def test_no_weights_at_all_are_refused() -> None:
    with pytest.raises(TrainerError, match="holds no weights"):
        propose({"w": np.zeros((3, 0))}, quantum=QUANTUM, label="")
    with pytest.raises(TrainerError, match="hold 0 weights"):
        propose({}, quantum=QUANTUM, label="")


@pytest.mark.parametrize("quantum", [0.0, -0.5, 0.3, 2.0, 2.0**-31, float("nan"), float("inf"), "1", None])
def test_a_quantum_that_is_no_power_of_two_in_range_is_refused(quantum: Any) -> None:
    with pytest.raises(TrainerError, match="is not a power of two within"):
        measure_quantum(quantum)


def test_the_quantum_may_be_any_power_of_two_in_range() -> None:
    assert [measure_quantum(2.0**-n) for n in range(31)] == [-n for n in range(31)]
    assert measure_quantum(np.float32(0.25)) == -2
    assert measure_quantum(1) == 0


def test_two_nodes_wait_for_each_other_unless_the_run_says_otherwise() -> None:
    values = {"w": np.zeros(2, np.float32)}
    assert propose(values, quantum=QUANTUM, label="")[0].two_nodes == "stall"
    proposal, _ = propose(values, quantum=QUANTUM, label="", two_nodes="lower-id")
    assert proposal.two_nodes == "lower-id"
    with pytest.raises(TrainerError, match="two_nodes 'both' is refused: of two nodes"):
        propose(values, quantum=QUANTUM, label="", two_nodes="both")


def test_for_a_dense_ring_the_coordinates_are_the_weights_bits() -> None:
    initial: dict[str, NDArray[Any]] = {
        "a": np.array([0.1, -0.0, 3e38], np.float32),
        "b": np.array([[1 / 3]]),
        "c": np.array([0.1], np.float16),
    }
    proposal, coordinates = propose(initial, quantum=QUANTUM, label="x", mode="ring-dense-float16")
    assert proposal.mode == "ring-dense-float16"
    expected = np.array([0.1, -0.0, 3e38, 1 / 3, np.float16(0.1)], np.float32)
    assert coordinates.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_weight_that_float32_cannot_hold_is_named(bad: float) -> None:
    words = rf"weight 2 of tensor 'w' is {bad:g}".replace("+", r"\+")
    with pytest.raises(
        TrainerError, match=words + r"; initial weights are finite and within \+-3.40282e\+38"
    ):
        propose({"w": np.array([0, 1, bad])}, quantum=QUANTUM, label="", mode="ring-dense")


@pytest.mark.parametrize(
    ("mode", "payload", "words"),
    [
        ("ring", "x", "payload 'x' is refused: give 'sparse', 'dense' or 'dense-float16'"),
        ("both", None, "mode 'both' is refused: the modes are 'async', 'owners', 'ring' and 'closure'"),
        ("async", "dense", "payload='dense' is for a ring: give mode='ring' as well, or leave it out"),
    ],
)
def test_words_for_no_mode_are_refused_one_by_one(mode: str, payload: str | None, words: str) -> None:
    with pytest.raises(TrainerError, match=f"^{words}$"):
        choose_mode(mode, payload)


@pytest.mark.parametrize(
    ("mode", "rounds", "words"),
    [
        ("ring", True, "rounds=True is for mode='owners': a ring has rounds in any case, so leave it out"),
        (
            "async",
            True,
            "rounds=True is for mode='owners': in mode 'async' no node waits for another, so leave it out",
        ),
        ("owners", 1, "rounds 1 is refused: give True or False"),
    ],
)
def test_rounds_are_for_owners(mode: str, rounds: object, words: str) -> None:
    with pytest.raises(TrainerError, match=f"^{words}$"):
        choose_mode(mode, None, rounds=rounds)
    assert choose_mode("owners", None, rounds=True).word == "owners-rounds"
    assert choose_mode("owners", None).word == "owners"
    both = choose_mode("owners", None, "adagrad", rounds=True)
    assert (both.rounds, both.rule.name) == (True, "adagrad")
    with pytest.raises(TrainerError, match=r"rule nesterov is for rounds, .*: train in rounds"):
        choose_mode("owners", None, "nesterov(momentum=0.5)")
    word = choose_mode("owners", None, "nesterov", rounds=True).word
    assert word == "owners-rounds-nesterov(momentum=0.9)"


def test_a_ring_is_sparse_unless_told_otherwise() -> None:
    assert choose_mode("ring", None).word == "ring-sparse"
    assert choose_mode("ring", "dense").word == "ring-dense"
    assert choose_mode("async", None).word == "async"


def test_ternary_contributions_are_for_owners_in_rounds() -> None:
    assert choose_mode("owners", "ternary", rounds=True).word == "owners-rounds-ternary"
    assert choose_mode("owners", "ternary", "adamw", rounds=True).rule.name == "adamw"
    words = r"^payload='ternary' is for owners in rounds: give mode='owners' and rounds=True as well"
    for mode in ("async", "owners", "ring"):
        with pytest.raises(TrainerError, match=words):
            choose_mode(mode, "ternary")
    with pytest.raises(TrainerError, match=r"^payload='dense' is for a ring: give mode='ring' as well"):
        choose_mode("owners", "dense", rounds=True)
    with pytest.raises(TrainerError, match=r"^rule adagrad does not go with payload ternary"):
        choose_mode("owners", "ternary", "adagrad", rounds=True)


def test_a_mode_that_is_not_known_is_refused() -> None:
    with pytest.raises(
        TrainerError, match="the modes are async, owners, owners-rounds, owners-rounds-ternary, ring-sparse, "
    ):
        propose(np.zeros(3, np.float32), quantum=QUANTUM, label="", mode="ring")
