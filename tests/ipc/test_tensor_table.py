"""The table of names and shapes as it passes the control socket."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.protocol import REQUEST_BYTES_MAX
from p2psgd.ipc.tensor_table import RANK_MAX, TABLE_BYTES_MAX, TENSORS_MAX, pack_tensors, parse_tensors
from tests.ipc.daemons import PATIENT

ROW = struct.Struct("<HB")
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj", "norm")


def transformer(tensors: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names as published models have them."""
    layers = range(-(-tensors // len(PARTS)))
    named = [(f"model.layers.{layer}.{part}.weight", (4096, 1024)) for layer in layers for part in PARTS]
    return tuple(named[:tensors])


@PATIENT
@given(
    st.lists(
        st.tuples(st.text(max_size=200), st.lists(st.integers(0, 2**32 - 1), max_size=RANK_MAX).map(tuple)),
        max_size=30,
    ).map(tuple)
)
def test_a_table_is_read_as_it_was_written(tensors: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    assert parse_tensors(pack_tensors(tensors)) == tensors


def test_a_model_of_5000_parameters_takes_a_third_of_a_datagram() -> None:
    tensors = transformer(5000)
    packed = pack_tensors(tensors)
    assert len(packed) < REQUEST_BYTES_MAX / 3
    assert parse_tensors(packed) == tensors


def test_the_limits_are_where_they_are_said_to_be() -> None:
    most = tuple((str(number), ()) for number in range(TENSORS_MAX))
    assert parse_tensors(pack_tensors(most)) == most
    with pytest.raises(TrainerError, match=r"of 16385 tensors take \d+ bytes; at most 16384 tensors and"):
        pack_tensors((*most, ("one more", ())))
    full = (TABLE_BYTES_MAX - 16 * ROW.size) // 16
    longest = tuple(("x" * full, ()) for _ in range(16))
    assert parse_tensors(pack_tensors(longest)) == longest
    with pytest.raises(TrainerError, match="fewer tensors or shorter names"):
        pack_tensors((*longest, ("more than is left", ())))


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"", "not whole"),
        (b"no deflate stream", "does not decompress"),
        (zlib.compress(b"")[:-1], "not whole"),
        (zlib.compress(b"") + b"more", "not whole"),
        (zlib.compress(bytes(TABLE_BYTES_MAX + 1)), "longer than 1048576 bytes"),
        (zlib.compress(bytes(2**24)), "longer than 1048576 bytes"),
        (zlib.compress(ROW.pack(1, 0) * 1), "reaches beyond"),
        (zlib.compress(ROW.pack(0, 2) + bytes(7)), "reaches beyond"),
        (zlib.compress(ROW.pack(0, RANK_MAX + 1) + bytes(4 * RANK_MAX + 4)), "reaches beyond"),
        (zlib.compress(b"\0\0"), "cut off"),
        (zlib.compress(ROW.pack(1, 0) + b"\xff"), "not UTF-8"),
        (zlib.compress(bytes(3 * (TENSORS_MAX + 1))), "more than 16384 tensors"),
    ],
)
def test_a_table_that_is_none_is_refused(packed: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_tensors(packed)


@PATIENT
@given(st.binary(max_size=300))
def test_any_bytes_are_a_table_or_refused(table: bytes) -> None:
    for packed in (table, zlib.compress(table)):
        with contextlib.suppress(ValueError):
            parse_tensors(packed)
