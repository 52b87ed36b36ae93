"""A node's weights as a file that other programs read, and a check that a file can be written."""

from __future__ import annotations

import errno
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from p2psgd.base.errors import UsageError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import ReplicaAnswer, ReplicaRequest, check_answer, close_descriptors
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.storage.files import replacing
from p2psgd.wire.update import weights_of

# ----------------------------------------------------------------------------
# Whether a file can be written, asked before the hours of work that it is to hold.


def check_output(path: Path, what: str) -> None:
    """Raise UsageError unless a file of this name, which is `what`, can be written; leaves nothing behind."""
    if path.is_dir():
        raise UsageError(f"the {what} cannot be written to {path}: it is a directory; give a file name")
    with refusing(f"the {what} cannot be written to {path}"):
        descriptor, trial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.close(descriptor)
        os.unlink(trial)


@contextmanager
def refusing(trouble: str) -> Iterator[None]:
    """Turn the operating system's refusal into one sentence."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        hints = {
            errno.ENOENT: "make the directory first",
            errno.EACCES: "choose a directory you may write to",
        }
        hint = hints.get(error.errno or 0, "choose another place")
        raise UsageError(f"{trouble}: {reason}; {hint}") from error


# ----------------------------------------------------------------------------
# A node's weights as a file that anything can read, .npz or safetensors: a float32 array for each tensor.


Weights = dict[str, NDArray[np.float32]]


def check_weights_name(path: Path) -> None:
    """Raise UsageError unless the name shows which format to write."""
    if path.suffix not in {".safetensors", ".npz"}:
        raise UsageError(f"{path} ends in neither .safetensors nor .npz: its name says what to write")


def check_weights_place(path: Path) -> None:
    """Raise UsageError, before anything is computed, if no weights can be written there."""
    check_weights_name(path)
    check_output(path, "weights")


def fetch_replica(client: ControlClient) -> tuple[ReplicaAnswer, NDArray[np.int32]]:
    """Get a copy of a daemon's replica: what it is, and its int32 numbers."""
    fields, descriptors = client.exchange(ReplicaRequest())
    try:
        answer = check_answer(ReplicaAnswer, fields)
        if len(descriptors) != 1:
            raise UsageError(f"the daemon sent {len(descriptors)} descriptors in place of one, its replica")
        return answer, map_segment(descriptors[0], np.int32, answer.coordinates, Access.SEALED)
    finally:
        close_descriptors(descriptors)


def export_weights(client: ControlClient, path: Path) -> tuple[int, str]:
    """Write the replica of the daemon that `client` is connected to; returns how many weights that were, and
    the digest in hex.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    answer, coordinates = fetch_replica(client)
    values = weights_of(coordinates[: answer.weights], mode=answer.mode, quantum_log2=answer.quantum_log2)
    return write_weights(path, values, tensors=answer.tensors), f"{answer.digest:016x}"


def write_weights(path: Path, values: NDArray[np.float32], *, tensors: Tensors) -> int:
    """Write weights float32 (P,) by tensor, as `write_tensors` does; returns how many they are."""
    weights, start = {}, 0
    for name, shape in tensors:
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
    """Write a .npz as numpy.savez does, which takes no array of the name `file`."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
