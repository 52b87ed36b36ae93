from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.segments import Access, create_segment, map_segment, read_sealed_coordinates, sealed_copy


@pytest.fixture
def segment() -> Iterator[int]:
    descriptor = create_segment("p2psgd-test", 4096)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def copy() -> Iterator[int]:
    descriptor = sealed_copy("p2psgd-test", np.arange(1000, dtype=np.int32))
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("size_bytes", [0, 4095, 4097, 1 << 20])
def test_nobody_can_resize_a_segment(segment: int, copy: int, size_bytes: int) -> None:
    for descriptor in (segment, copy):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size_bytes)


def test_nobody_can_lift_the_seals(segment: int) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_two_maps_of_a_segment_share_it_also_after_its_descriptor_is_closed() -> None:
    descriptor = create_segment("p2psgd-test", 64)
    writer = map_segment(descriptor, np.uint64, 8, Access.WRITE)
    reader = map_segment(descriptor, np.uint64, 8, Access.READ)
    os.close(descriptor)
    writer[3] = 2**64 - 1
    assert reader[3] == 2**64 - 1
    assert not reader.flags.writeable


def test_nobody_can_write_a_sealed_copy(copy: int) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(copy, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(copy, 4000)
    mapped = map_segment(copy, np.int32, 1000, Access.SEALED)
    np.testing.assert_array_equal(mapped, np.arange(1000))
    assert not mapped.flags.writeable


def test_a_segment_of_another_size_is_refused(segment: int) -> None:
    with pytest.raises(TrainerError, match="4096 bytes instead of 4104"):
        map_segment(segment, np.uint64, 513, Access.WRITE)


def test_sealed_coordinates_are_read(copy: int) -> None:
    np.testing.assert_array_equal(read_sealed_coordinates(copy, 1000), np.arange(1000))


def test_coordinates_that_could_change_or_vanish_are_refused(copy: int, segment: int) -> None:
    with pytest.raises(TrainerError, match="4000 bytes; 999 of them take 3996"):
        read_sealed_coordinates(copy, 999)
    with pytest.raises(TrainerError, match="must be sealed"):
        read_sealed_coordinates(segment, 1024)
    reading_end, writing_end = os.pipe()
    with tempfile.TemporaryFile() as file:
        for descriptor in (reading_end, writing_end, file.fileno()):
            with pytest.raises(TrainerError, match="must come in a memfd"):
                read_sealed_coordinates(descriptor, 1000)
    os.close(reading_end)
    os.close(writing_end)
