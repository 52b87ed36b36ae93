"""Sealed memory segments that daemon and trainer share, and those of a dense ring and of evaluations."""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.layout import dense_numbers
from p2psgd.ipc.protocol import close_descriptors

# ----------------------------------------------------------------------------
# Shared memory without names: memfds whose size is sealed.
#
# A process that maps a file somebody else truncates dies of SIGBUS. So the daemon seals every segment
# against shrinking and growing before it hands it over, and an attempt to truncate it gets EPERM; copies
# of the replica are sealed against writing too. What comes from the trainer must be sealed against both
# before the daemon looks at it: initial coordinates are read with preadv, a trainer's state is mapped, since
# it is large and nobody but a writing thread reads it.
#
# Mappings have no close(): numpy arrays keep theirs alive, and the memory goes with the last array.


Item = TypeVar("Item", bound=np.generic)

SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PIECE_BYTES = 1 << 26  # one read or write call moves at most this much: below the kernel's 2 GiB


class Access(enum.Enum):
    """Purposes of a map of a segment."""

    WRITE = enum.auto()
    READ = enum.auto()  # what the other side writes
    SEALED = enum.auto()  # what can never change; kernels before 6.7 map it only privately


def create_segment(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new writable memfd of zeros whose size can no longer change."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sealed_copy(name: str, *arrays: NDArray[Any]) -> int:
    """Return the descriptor of a new memfd with the bytes of these arrays (contiguous), one after the other.

    It can never change.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, sum(array.nbytes for array in arrays))
        start = 0
        for array in arrays:
            contents = array.reshape(-1).view(np.uint8).data
            position = 0
            while position < len(contents):
                piece = contents[position : position + PIECE_BYTES]
                position += os.pwrite(descriptor, piece, start + position)
            start += position
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_segment(descriptor: int, item: type[Item], count: int, access: Access) -> NDArray[Item]:
    """Map `count` items, the whole of the segment, as an array of shape (count,).

    The descriptor may be closed after.

    Raises TrainerError if the segment has another size.
    """
    size_bytes = count * np.dtype(item).itemsize
    found_bytes = os.fstat(descriptor).st_size
    if found_bytes != size_bytes:
        raise TrainerError(f"a segment of shared memory holds {found_bytes} bytes instead of {size_bytes}")
    flags = mmap.MAP_PRIVATE if access is Access.SEALED else mmap.MAP_SHARED
    protection = mmap.PROT_READ | mmap.PROT_WRITE if access is Access.WRITE else mmap.PROT_READ
    memory = mmap.mmap(descriptor, size_bytes, flags=flags, prot=protection)
    return np.frombuffer(memory, dtype=item, count=count)


def map_sealed(descriptor: int, what: str) -> NDArray[np.uint8]:
    """Map a sealed memfd from another process, (n,), read-only; TrainerError if it is anything else.

    `what` stands in that sentence. The descriptor may be closed after.
    """
    _check_sealed(descriptor, what)
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes == 0:
        raise TrainerError(f"the memfd of {what} is empty")
    return map_segment(descriptor, np.uint8, size_bytes, Access.SEALED)


def read_sealed_coordinates(descriptor: int, count: int) -> NDArray[np.int32]:
    """Copy int32[count] out of a sealed memfd from another process; TrainerError if it is anything else."""
    _check_sealed(descriptor, "initial coordinates")
    found_bytes = os.fstat(descriptor).st_size
    if found_bytes != 4 * count:
        raise TrainerError(
            f"the initial coordinates take {found_bytes} bytes; {count} of them take {4 * count}"
        )
    coordinates = np.empty(count, dtype=np.int32)
    contents = coordinates.data.cast("B")
    position = 0
    while position < len(contents):
        got = os.preadv(descriptor, [contents[position : position + PIECE_BYTES]], position)
        if got == 0:
            raise TrainerError("the memfd of initial coordinates ended early")
        position += got
    return coordinates


def _check_sealed(descriptor: int, what: str) -> None:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise TrainerError(f"{what} must come in a memfd; this descriptor is none") from None
    if not seals & fcntl.F_SEAL_SHRINK or not seals & fcntl.F_SEAL_WRITE:
        raise TrainerError(f"the memfd of {what} must be sealed against shrinking and writing")


# ----------------------------------------------------------------------------
# The memory of a dense ring that a node's daemon and its trainers share: contributions and sums (core's
# DenseMemory).
#
# Two sealed memfds, made by the daemon when the run is known. They outlive trainers: a contribution that was
# given whole stays for the round. The trainer maps the sums for reading only.


class DenseSegments:
    """`contributions` and `arrays` float32 (M,), in one segment, and `sums` float32 (2, M), as the daemon
    sees them; `descriptors` of both.
    """

    def __init__(self, weights: int) -> None:
        numbers = dense_numbers(weights)
        self.descriptors: list[int] = []
        try:
            for name in ("contributions", "sums"):
                self.descriptors.append(create_segment(f"p2psgd-{name}", 4 * 2 * numbers))
            contributions, sums = self.descriptors
            given = map_segment(contributions, np.float32, 2 * numbers, Access.READ)
            self.contributions, self.arrays = given.reshape(2, numbers)
            self.sums = map_segment(sums, np.float32, 2 * numbers, Access.WRITE).reshape(2, numbers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors; the maps go with their arrays."""
        close_descriptors(self.descriptors)
        self.descriptors = []


# ----------------------------------------------------------------------------
# The memory of mode `closure` (core's ClosureMemory): the sum of the trainer's portions, and that of all.


class ClosureSegments:
    """`parts` and `totals` int64 (P + 1,), as the daemon sees them; `descriptors` of both."""

    def __init__(self, weights: int) -> None:
        self.descriptors: list[int] = []
        try:
            for name in ("parts", "totals"):
                self.descriptors.append(create_segment(f"p2psgd-{name}", 8 * (weights + 1)))
            parts, totals = self.descriptors
            self.parts = map_segment(parts, np.int64, weights + 1, Access.READ)
            self.totals = map_segment(totals, np.int64, weights + 1, Access.WRITE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors; the maps go with their arrays."""
        close_descriptors(self.descriptors)
        self.descriptors = []


def map_closure(weights: int, descriptors: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Map `parts`, to be written, and `totals`, as a trainer sees them."""
    parts, totals = descriptors
    return (
        map_segment(parts, np.int64, weights + 1, Access.WRITE),
        map_segment(totals, np.int64, weights + 1, Access.READ),
    )
