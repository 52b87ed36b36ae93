from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.wire.messages import unpack_flat_map, unpack_map


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


def test_a_flat_map_holds_numbers_text_and_bytes() -> None:
    fields = {"a": 1, "b": "c", "d": b"e", "f": True}
    assert unpack_flat_map(msgpack.packb(fields), keys_max=4) == fields


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"a": 1, "b": 2, "c": 3}, "exceeds max_map_len"),
        ({"a": []}, "an array"),
        ({"a": [1]}, "exceeds max_array_len"),
        ({"a": {}}, "a map within a map"),
        ({"a": {"b": {}}}, "a map within a map"),
    ],
)
def test_a_flat_map_holds_no_more_and_nothing_nested(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack_flat_map(msgpack.packb(fields), keys_max=2)


@given(st.binary(max_size=200))
def test_any_bytes_are_safe(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(unpack_map(data, array_max=4), dict)
    with contextlib.suppress(ValueError):
        assert isinstance(unpack_flat_map(data, keys_max=4), dict)
