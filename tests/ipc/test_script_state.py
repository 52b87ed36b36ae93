"""A script's state survives its bytes, and no bytes survive that are not exactly one."""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import script_state
from p2psgd.ipc.script_state import (
    ARRAYS,
    ENDED,
    EVALUATED,
    TRAINED,
    end_of,
    of_script,
    pack_state,
    read_state,
    trained_weights,
    unpack_state,
)
from p2psgd.ipc.segments import sealed_copy
from tests.ipc.daemons import PATIENT


def packed(state: dict[str, Any]) -> NDArray[np.uint8]:
    return np.concatenate(pack_state(state))


def forged(values: Any, data: bytes = b"") -> NDArray[np.uint8]:
    """A state whose header says this, with data after its padding."""
    header: bytes = msgpack.packb({"values": values})
    start = struct.pack("<I", len(header)) + header
    return np.frombuffer(start + bytes(-len(start) % 64) + data, np.uint8)


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    state = {
        "steps": 7,
        "least": -(2**63),
        "flag": True,
        "loss": 0.5,
        "nan": float("nan"),
        "order": '{"state": 123}',
        "empty text": "",
        "blob": b"\x00\xff",
        "view": memoryview(b"abc"),
        "scalar": np.float32(1.5),
        "none": np.zeros((0, 3), np.float16),
        **{name: np.arange(6).reshape(2, 3).astype(name) for name in ARRAYS},
        "sliced": np.arange(10, dtype=np.int32)[::3],
        "foreign": np.arange(3, dtype=">i4"),
    }
    memory = sealed_copy("state", *pack_state(state))
    found = read_state(memory)
    os.close(memory)
    assert list(found) == list(state)
    for name, value in state.items():
        back = found[name]
        if isinstance(value, np.ndarray | np.generic):
            assert isinstance(back, np.ndarray)
            assert (back.dtype, back.shape) == (value.dtype.newbyteorder("="), value.shape)
            assert back.flags.writeable
            np.testing.assert_array_equal(back, value)
        elif name != "nan":
            assert back == value
            assert type(back) is {bool: int, memoryview: bytes}.get(type(value), type(value))
    assert unpack_state(packed({})) == {}


def test_views_of_the_bytes_are_not_copied() -> None:
    contents = packed({"array": np.arange(1000), "blob": bytes(1000)})
    state = unpack_state(contents)
    assert isinstance(state["array"], np.ndarray)
    assert np.shares_memory(state["array"], contents)
    assert isinstance(state["blob"], memoryview)
    assert not pack_state({"array": state["array"]})[2].flags.owndata


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([1], "must be a dict of names and values; it is a list"),
        ({1: 1}, "1 names a value of the state"),
        ({"": 1}, "a name is a text of 1 to 200"),
        ({"x" * 201: 1}, "a name is a text of 1 to 200"),
        ({"\ud800": 1}, "a name in the state cannot be written as UTF-8"),
        ({"x": None}, "'x' of the state is a NoneType; possible are numpy arrays, ints"),
        ({"x": {"y": 1}}, "'x' of the state is a dict"),
        ({"x": [1, 2]}, "'x' of the state is a list"),
        ({"x": 2**63}, "'x' of the state is an int beyond 64 bits: keep it as a text"),
        ({"x": "\ud800"}, "'x' of the state is a text that UTF-8 does not have"),
        ({"x": np.array([None])}, "'x' of the state is an array of object"),
        ({"x": np.zeros(3, np.complex64)}, "is an array of complex64"),
        ({"x": np.array(["a"])}, "is an array of <U1"),
        ({"x": np.zeros((1,) * 17)}, "with 17 axes"),
        ({str(number): 0 for number in range(4097)}, "a state of 4097 values"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(state: Any, words: str) -> None:
    with pytest.raises(TrainerError) as caught:
        pack_state(state)
    assert words in str(caught.value)


def test_a_state_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_state, "STATE_BYTES_MAX", 1000)
    assert len(packed({"x": bytes(800)})) < 1000
    with pytest.raises(TrainerError, match="takes 1064 bytes; at most 1000 are possible"):
        pack_state({"x": bytes(1000)})


def test_the_point_of_the_last_evaluation_stands_for_trained_weights_unless_the_script_keeps_some() -> None:
    state: dict[str, Any] = {"mine": 1, EVALUATED: np.ones((3, 1), np.float32), ENDED: "evaluation 7"}
    np.testing.assert_array_equal(trained_weights(state, 3), np.ones(3))
    assert trained_weights(state, 4) is None
    assert end_of(state) == "evaluation 7"
    assert of_script(state) == {"mine": 1}
    np.testing.assert_array_equal(trained_weights({**state, TRAINED: np.zeros(3)}, 3), np.zeros(3))
    assert of_script({EVALUATED: np.ones(3), ENDED: "evaluation 7"}) is None
    assert end_of(None) == end_of({ENDED: 7}) == ""


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (np.zeros(3, np.uint8), "a state of 3 bytes"),
        (np.full(100, 255, np.uint8), "claims to have 4294967295"),
        (np.zeros(4, np.uint8), "no MessagePack map"),
        (forged(None), "malformed state"),
        (forged([["x", "an int", []]] * 5000), "malformed state"),
        (forged([["x", "an int", []]]), "'x' of a state reaches beyond its"),
        (forged([["x", "uint8", [2**30]]]), "'x' of a state reaches beyond its"),
        (forged([["x", "uint8", [2**30] * 16]]), "'x' of a state reaches beyond its"),
        (forged([["x", "uint8", [-1]]]), "malformed state"),
        (forged([["x", "uint8", [True]]]), "malformed state"),
        (forged([["x", "uint8", [2**30 + 1, 0]]]), "malformed state"),
        (forged([["x", "uint8", [*[2**30] * 15, 0]]]), "'x' of a state: "),
        (forged([["x", "object", []]], bytes(8)), "has kind 'object' and 0 axes"),
        (forged([["x", "an int", [1]]], bytes(8)), "has kind 'an int' and 1 axes"),
        (forged([["x", "a text", []]], bytes(1)), "has kind 'a text' and 0 axes"),
        (forged([["x", "a text", [1]]], b"\xff"), "'x' of a state is no UTF-8"),
        (forged([["x", "uint8", [1]]], bytes(2)), "is not what its header says"),
        (forged([["x", "uint8", [64]], ["x", "uint8", [1]]], bytes(65)), "is not what its header says"),
    ],
)
def test_bytes_that_are_no_state_are_refused_in_a_sentence(contents: NDArray[np.uint8], words: str) -> None:
    with pytest.raises(TrainerError) as caught:
        unpack_state(contents)
    assert words in str(caught.value)


@PATIENT
@given(st.data())
def test_a_state_with_any_byte_changed_is_read_or_refused(data: st.DataObject) -> None:
    contents = packed({"x": np.arange(5), "y": "text", "z": b"blob", "n": 3, "f": 0.5})
    for _ in range(data.draw(st.integers(1, 3))):
        contents[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    try:
        state = unpack_state(contents[: data.draw(st.integers(0, contents.size))])
    except TrainerError:
        return
    assert list(unpack_state(packed(state))) == list(state)
