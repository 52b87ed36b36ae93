from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.wire.maps import unpack_map


def test_a_map_is_read() -> None:
    assert unpack_map(msgpack.packb({"a": [1, 2], "b": {"c": None}}), array_max=2) == {
        "a": (1, 2),
        "b": {"c": None},
    }
    assert unpack_map(msgpack.packb({"a": [1, 2]}), array_max=2, lists=True) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Unpack failed|incomplete"),
        (b"\x01", "not a map"),
        (b"\x82\xa1a\x01\xa1a\x02", "a key stands twice"),
        (b"\x81\x01\x02", "int is not allowed"),
        (b"\x81\xa1a\xd4\x05\x00", "ext"),
        (b"\x81\xa1a\x93\x01\x02\x03", "array"),
        (b"\x81\xa1a\x01\x00", "extra data"),
        (b"\x81\xa1a", "incomplete"),
        (b"\x81\xa1a" + 2000 * b"\x91", "nested too deeply"),
        (2000 * b"\x81\xa1a", "nested too deeply"),
        (b"\xc1", "a byte that MessagePack does not have"),
    ],
)
def test_anything_else_is_refused_in_few_words(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        unpack_map(data, array_max=2)
    assert len(str(caught.value)) <= 100


@given(st.binary(max_size=200))
def test_any_bytes_are_safe(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(unpack_map(data, array_max=4), dict)
