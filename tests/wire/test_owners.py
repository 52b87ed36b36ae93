"""The vectors of mode `owners`: bodies that are read and written as they stand, and others, all refused."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.wire.contribution import (
    ContributionHeader,
    encode_words,
    pack_contribution,
    parse_contribution,
)
from p2psgd.wire.cover import CoverRow, pack_table, parse_table
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import UpdateHeader, decode_update, pack_update, parse_update
from tests.vectors import OwnersVector, RefusedOwnersVector, owners_vectors, refused_owners_vectors
from tests.wire.arrays import uint32

CONTRIBUTION, UPDATE, SNAPSHOT_COVER = "CONTRIBUTION", "UPDATE", "SNAPSHOT_COVER"


def vectors(type_name: str) -> list[OwnersVector]:
    found = [vector for vector in owners_vectors() if vector.type_name == type_name]
    assert found
    return found


def read(vector: RefusedOwnersVector) -> None:
    match vector.type_name:
        case "CONTRIBUTION":
            parse_contribution(vector.body, vector.weights, gradients=True)
        case "UPDATE":
            decode_update(*parse_update(vector.body, vector.weights), vector.weights)
        case "SNAPSHOT_COVER":
            parse_table(vector.body)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("vector", vectors(CONTRIBUTION), ids=lambda vector: vector.name)
def test_a_contribution_is_read_and_written(vector: OwnersVector) -> None:
    words = uint32(vector.words)
    header, found = parse_contribution(vector.body, vector.weights, gradients=True)
    assert header == ContributionHeader(**vector.numbers, count=len(words))
    assert np.array_equal(found, words)
    base, payload = encode_words(words, vector.weights)
    assert base == header.base
    assert pack_contribution(header, payload) == vector.body


@pytest.mark.parametrize("vector", vectors(UPDATE), ids=lambda vector: vector.name)
def test_an_update_is_read_and_written(vector: OwnersVector) -> None:
    words, cover = uint32(vector.words), tuple(CoverRow(*row) for row in vector.rows)
    header, payload = parse_update(vector.body, vector.weights)
    assert header == UpdateHeader(**vector.numbers, count=len(words), cover=cover)
    assert np.array_equal(decode_update(header, payload, vector.weights), words)
    base, packed = encode_words(words, vector.weights) if len(words) else (0, b"")
    assert base == header.base
    assert pack_update(header, packed) == vector.body


@pytest.mark.parametrize("vector", vectors(SNAPSHOT_COVER), ids=lambda vector: vector.name)
def test_a_table_is_read_and_written(vector: OwnersVector) -> None:
    owner, numbers = parse_table(vector.body)
    assert owner == (vector.numbers["node"], vector.numbers["incarnation"])
    assert tuple((*contributor, last) for contributor, last in numbers.items()) == vector.rows
    assert pack_table(owner, numbers.items()) == vector.body


@pytest.mark.parametrize(
    "vector", refused_owners_vectors(), ids=lambda vector: f"{vector.type_name}: {vector.name}"
)
def test_a_body_that_cannot_be_is_refused_with_its_code(vector: RefusedOwnersVector) -> None:
    with pytest.raises(PeerError) as caught:
        read(vector)
    assert caught.value.code is RejectCode[vector.code]


def test_the_vectors_show_each_type_and_each_code() -> None:
    refused = refused_owners_vectors()
    assert {vector.type_name for vector in refused} == {CONTRIBUTION, UPDATE, SNAPSHOT_COVER}
    codes = {"CONTRIBUTION", "COVER", "CHECKSUM", "PAYLOAD", "COUNT", "ENCODING"}
    assert {vector.code for vector in refused} == codes
