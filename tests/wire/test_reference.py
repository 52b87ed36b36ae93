"""The reference against published values and against itself, and the vector files against their generator."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given

from tests.vectors import FOLDER, PayloadVector, RefusedVector, make, payload_vectors, refused_vectors
from tests.wire import reference
from tests.wire.strategies import damaged_payloads, foreign_payloads


def test_the_vector_files_are_what_their_generator_makes() -> None:
    for name, content in make.files().items():
        assert (FOLDER / name).read_text() == content, f"{name} is out of date: python -m tests.vectors.make"


@pytest.mark.parametrize("vector", payload_vectors(), ids=lambda vector: vector.name)
def test_the_reference_reads_a_vector(vector: PayloadVector) -> None:
    decoded = reference.decode(vector.payload, len(vector.words), vector.weights)
    assert tuple(decoded.words) == vector.words
    assert reference.encode(vector.words, vector.weights, decoded.choices) == vector.payload
    assert (reference.encode(vector.words, vector.weights) == vector.payload) == vector.encoders_give


def test_the_vectors_show_every_sign_mode_and_the_dense_form() -> None:
    choices = [
        reference.decode(vector.payload, len(vector.words), vector.weights).choices
        for vector in payload_vectors()
    ]
    assert {choice.sign_mode for blocks in choices for choice in blocks} == set(range(8))
    assert reference.DENSE in choices


@pytest.mark.parametrize("vector", refused_vectors(), ids=lambda vector: vector.name)
def test_the_reference_refuses_a_vector(vector: RefusedVector) -> None:
    with pytest.raises(reference.PayloadRefused):
        reference.decode(vector.payload, vector.count, vector.weights)


@given(foreign_payloads())
def test_the_reference_reads_what_it_writes_and_shows_the_choices(
    case: tuple[bytes, list[int], int, reference.Choices],
) -> None:
    payload, words, weights, choices = case
    assert reference.decode(payload, len(words), weights) == (words, choices)
    assert sum(reference.measure(payload, len(words), weights)[:5]) == 8 * len(payload)


@given(damaged_payloads())
def test_what_the_reference_reads_it_writes_with_the_same_choices(case: tuple[bytes, int, int]) -> None:
    payload, count, weights = case
    with suppress(reference.PayloadRefused):
        words, choices = reference.decode(payload, count, weights)
        assert reference.encode(words, weights, choices) == payload


def test_the_checksum_is_the_published_one() -> None:
    """RFC 3720, appendix B.4, and the check value of the CRC catalogues."""
    assert reference.crc32c(bytes(32)) == 0x8A9136AA
    assert reference.crc32c(bytes([0xFF] * 32)) == 0x62A8AB43
    assert reference.crc32c(bytes(range(32))) == 0x46DD794E
    assert reference.crc32c(b"123456789") == 0xE3069283


def test_the_hash_is_the_published_splitmix64_made_odd() -> None:
    """The generator's test values for seed 1234567; h only sets the lowest bit."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [reference.index_hash(index, 1234567) for index in range(4)] == [value | 1 for value in published]
