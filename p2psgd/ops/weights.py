"""A node's weights as a file that anything can read, .npz or safetensors: a float32 array for each tensor."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from p2psgd.durable.atomic import replacing
from p2psgd.errors import UsageError
from p2psgd.ipc.answers import ReplicaAnswer, check_answer
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.proposal import Tensors, own_tensors
from p2psgd.ipc.requests import ReplicaRequest
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ops.output import check_output, refusing
from p2psgd.wire.weights import weights_of

Weights = dict[str, NDArray[np.float32]]


def check_weights_name(path: Path) -> None:
    """UsageError unless the name says what to write."""
    if path.suffix not in {".safetensors", ".npz"}:
        raise UsageError(f"{path} ends in neither .safetensors nor .npz: its name says what to write")


def check_weights_place(path: Path) -> None:
    """UsageError, before anything is computed, if no weights can be written there."""
    check_weights_name(path)
    check_output(path, "weights")


def export_weights(client: ControlClient, path: Path) -> tuple[int, str]:
    """Write the replica of the daemon that `client` is connected to; returns how many weights that were, and
    the digest in hex.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    fields, descriptors = client.exchange(ReplicaRequest())
    try:
        answer = check_answer(ReplicaAnswer, fields)
        coordinates = map_segment(descriptors[0], np.int32, answer.weights, Access.SEALED)
    finally:
        close_descriptors(descriptors)
    values = weights_of(coordinates, mode=answer.mode, quantum_log2=answer.quantum_log2)
    return write_weights(path, values, tensors=answer.tensors), f"{answer.digest:016x}"


def write_weights(path: Path, values: NDArray[np.float32], *, tensors: Tensors) -> int:
    """Write weights float32 (P,) by tensor, as `write_tensors` does. What counts shards is left out; returns
    how many weights are left.
    """
    weights, start = {}, 0
    for name, shape in own_tensors(tensors):
        size = math.prod(shape)
        weights[name] = values[start : start + size].reshape(shape)
        start += size
    write_tensors(path, weights)
    return start


def write_tensors(path: Path, weights: Weights) -> None:
    """Write tensors by name, float32: as safetensors if `path` ends so, else as .npz.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    with refusing(f"the weights cannot be written to {path}"), replacing(path, mode=0o666) as file:
        if path.suffix == ".safetensors":
            file.write(safetensors.numpy.save(weights))
        else:
            _write_npz(file, weights)


def _write_npz(file: BinaryIO, weights: Weights) -> None:
    """As numpy.savez does, which takes no array of the name `file`."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
