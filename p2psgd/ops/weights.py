"""A node's weights as a file that anything can read: an .npz with a float32 array for each tensor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from p2psgd.errors import ExitCode, UsageError
from p2psgd.ipc.answers import ReplicaAnswer, check_answer
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.requests import ReplicaRequest
from p2psgd.ipc.segments import Access, map_segment


def export_weights(client: ControlClient, path: Path) -> tuple[int, str]:
    """Write the replica of the daemon that `client` is connected to; returns P and the digest in hex.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    fields, descriptors = client.exchange(ReplicaRequest())
    try:
        answer = check_answer(ReplicaAnswer, fields)
        coordinates = map_segment(descriptors[0], np.int32, answer.weights, Access.SEALED)
    finally:
        close_descriptors(descriptors)
    weights = (coordinates * 2.0**answer.quantum_log2).astype(np.float32)
    tensors, start = {}, 0
    for name, shape in answer.tensors:
        size = math.prod(shape)
        tensors[name] = weights[start : start + size].reshape(shape)
        start += size
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            np.savez(file, allow_pickle=False, **tensors)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        words = f"the weights cannot be written to {path}: {(error.strerror or str(error)).lower()}"
        raise UsageError(words, ExitCode.USAGE) from None
    return answer.weights, f"{answer.digest:016x}"
