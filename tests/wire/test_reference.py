"""The reference against published values and against itself, and the vector files against their generator."""

from __future__ import annotations

import pytest
from hypothesis import given
from numpy import uint32
from numpy.typing import NDArray

from tests.vectors import FOLDER, PayloadVector, RefusedVector, make, payload_vectors, refused_vectors
from tests.wire import reference
from tests.wire.strategies import words_and_weights


def test_the_vector_files_are_what_their_generator_makes() -> None:
    for name, content in make.files().items():
        assert (FOLDER / name).read_text() == content, f"{name} is out of date: python -m tests.vectors.make"


@pytest.mark.parametrize("vector", payload_vectors(), ids=lambda vector: vector.name)
def test_the_reference_reads_a_vector(vector: PayloadVector) -> None:
    decoded = reference.decode(vector.payload, len(vector.words), vector.weights)
    assert tuple(decoded.words) == vector.words
    minimal = reference.decode(reference.encode(vector.words), len(vector.words), vector.weights).parameters
    assert (decoded.parameters == minimal) == vector.encoders_give


@pytest.mark.parametrize("vector", refused_vectors(), ids=lambda vector: vector.name)
def test_the_reference_refuses_a_vector(vector: RefusedVector) -> None:
    with pytest.raises(reference.PayloadRefused):
        reference.decode(vector.payload, vector.count, vector.weights)


@given(words_and_weights())
def test_the_reference_reads_what_it_writes(case: tuple[NDArray[uint32], int]) -> None:
    words = case[0].tolist()
    assert reference.decode(reference.encode(words), len(words), case[1]).words == words


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
