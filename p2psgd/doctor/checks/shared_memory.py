"""Shared memory of daemon and trainer: memfds, which need no /dev/shm, however small that is."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from p2psgd.doctor.finding import Finding, ok, problem
from p2psgd.errors import TrainerError
from p2psgd.ipc.segments import Access, create_segment, map_segment

CHECK: Final = "shared memory"
NUMBERS: Final = 1 << 16


def check_shared_memory() -> Finding:
    """Makes a segment, seals it, writes to it."""
    try:
        descriptor = create_segment("p2psgd-doctor", 4 * NUMBERS)
        try:
            map_segment(descriptor, np.int32, NUMBERS, Access.WRITE)[:] = 1
        finally:
            os.close(descriptor)
    except (OSError, TrainerError) as error:
        words = f"memfds do not work here: {getattr(error, 'strerror', None) or error}"
        return problem(
            CHECK, words, "Linux 3.17 or newer; in a container, a seccomp profile that allows memfd_create"
        )
    return ok(CHECK, "works without names; /dev/shm is not needed, whatever its size")
