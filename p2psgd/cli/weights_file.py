"""A node's weights as a file that other programs read, and a check that a file can be written."""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, UsageError, exit_code_of
from p2psgd.base.formatting import counted
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import ReplicaAnswer, ReplicaRequest, check_answer, close_descriptors
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.ipc.script_state import (
    ALIAS,
    BUFFER,
    ScriptState,
    ScriptValue,
    read_state,
    trained_digest,
    trained_weights,
)
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.storage.files import replacing
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.update import weights_of

# ----------------------------------------------------------------------------
# Whether a file can be written, asked before the hours of work that it is to hold.


def check_output(path: Path, what: str) -> None:
    """Raise UsageError unless a file of this name, which is `what`, can be written; leaves nothing behind."""
    if path.is_dir():
        words = f"the {what} cannot be written to {path}: it is a directory; give a file name"
        raise UsageError(words, ExitCode.PERMISSION)
    with refusing(f"the {what} cannot be written to {path}"):
        descriptor, trial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.close(descriptor)
        os.unlink(trial)


@contextmanager
def refusing(trouble: str) -> Iterator[None]:
    """Turn the operating system's refusal into one sentence, with the exit code of such."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        hints = {
            errno.ENOENT: "make the directory first",
            errno.EACCES: "choose a directory you may write to",
        }
        hint = hints.get(error.errno or 0, "choose another place")
        raise UsageError(f"{trouble}: {reason}; {hint}", exit_code_of(error)) from error


# ----------------------------------------------------------------------------
# A node's weights as a file that anything can read, .npz or safetensors: a float32 array for each tensor, and
# an array for each buffer of the model, if the node's script keeps any.


Arrays = dict[str, NDArray[Any]]


class Replica(NamedTuple):
    """A copy of a daemon's replica: what it is, its int32 numbers, and what the node's script keeps."""

    answer: ReplicaAnswer
    coordinates: NDArray[np.int32]
    script: ScriptState


def check_weights_name(path: Path) -> None:
    """Raise UsageError unless the name shows which format to write; of PyTorch's own, how to get one."""
    if path.suffix in {".safetensors", ".npz"}:
        return
    words = f"{path} ends in neither .safetensors nor .npz: its name says what to write"
    if path.suffix in {".pt", ".pth"}:
        written = path.with_suffix(".safetensors")
        program = (
            "import torch; from safetensors.torch import load_file; "
            f"torch.save(load_file({json.dumps(str(written))}), {json.dumps(str(path))})"
        )
        words += f"; write {written}, and this makes {path} of it: python -c {shlex.quote(program)}"
    raise UsageError(words)


def check_weights_place(path: Path) -> None:
    """Raise UsageError, before anything is computed, if no weights can be written there."""
    check_weights_name(path)
    check_output(path, "weights")


def fetch_replica(client: ControlClient, *, with_script: bool = False) -> Replica:
    """Get a copy of a daemon's replica; `with_script`, and in mode `closure`: also what its script keeps, a
    gigabyte at most.
    """
    fields, descriptors = client.exchange(ReplicaRequest())
    try:
        answer = check_answer(ReplicaAnswer, fields)
        if not 1 <= len(descriptors) <= 2:
            raise UsageError(f"the daemon sent {len(descriptors)} descriptors with its replica, not 1 or 2")
        coordinates = map_segment(descriptors[0], np.int32, answer.coordinates, Access.SEALED)
        script = descriptors[1:] if with_script or parse_mode(answer.mode).closure else []
        return Replica(answer, coordinates, read_state(script[0]) if script else {})
    finally:
        close_descriptors(descriptors)


class Written(NamedTuple):
    """Describes a file of weights: their number, the replica's digest in hex, and the number of buffers,
    which the node's script kept at its step `steps`; None if it does not say.
    """

    weights: int
    digest: str
    buffers: int
    steps: int | None

    def __str__(self) -> str:
        words = f"{counted(self.weights, 'weight')} with digest {self.digest}"
        if self.buffers:
            since = "" if self.steps is None else f" at step {self.steps:,}"
            words += f" and {counted(self.buffers, 'buffer')} that this node's script kept{since}"
        return words


def export_weights(client: ControlClient, path: Path) -> Written:
    """Write the replica of the daemon that `client` is connected to, and the buffers of its script.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    return write_arrays(path, fetch_arrays(client))


class Made(NamedTuple):
    """The arrays of a file of weights, and what is said of it; `aliases`: second names, and the first.
    `label`: of their run, which says which part they are; "" if it is not known.
    """

    arrays: Arrays
    buffers: Arrays
    aliases: Mapping[str, str]
    digest: str
    steps: int | None
    label: str = ""


def fetch_arrays(client: ControlClient) -> Made:
    """Return the arrays of the replica of the daemon that `client` is connected to."""
    answer, coordinates, script = fetch_replica(client, with_script=True)
    values = weights_of(coordinates[: answer.weights], mode=answer.mode, quantum_log2=answer.quantum_log2)
    return make_arrays(values, tensors=answer.tensors, digest=answer.digest, script=script)


def make_arrays(
    values: NDArray[np.float32],
    *,
    tensors: Tensors,
    digest: int = 0,
    script: Mapping[str, ScriptValue] | None = None,
) -> Made:
    """Return weights float32 (P,) by tensor, or in their place those that a script keeps as trained, with the
    buffers that it keeps.
    """
    kept = script or {}
    if (trained := trained_weights(kept, values.size)) is not None:
        values, digest = trained.astype(np.float32), trained_digest(trained)
    arrays: Arrays = {}
    start = 0
    for name, shape in tensors:
        size = math.prod(shape)
        arrays[name] = values[start : start + size].reshape(shape)
        start += size
    aliases = {
        name.removeprefix(ALIAS): value
        for name, value in kept.items()
        if name.startswith(ALIAS) and isinstance(value, str)
    }
    steps = kept.get("steps")
    buffers = _buffers_of(kept, arrays)
    return Made(arrays, buffers, aliases, f"{digest:016x}", steps if isinstance(steps, int) else None)


def write_arrays(path: Path, made: Made) -> Written:
    """Write the arrays, the buffers and what has a second name, as `write_tensors` does."""
    arrays = made.arrays | made.buffers
    for name, first in made.aliases.items():
        if first in arrays:
            arrays.setdefault(name, arrays[first])
    write_tensors(path, arrays)
    weights = sum(values.size for values in made.arrays.values())
    return Written(weights, made.digest, len(made.buffers), made.steps)


def _buffers_of(script: Mapping[str, ScriptValue], tensors: Arrays) -> Arrays:
    """Return the buffers among what a script keeps, but for those that are named as a tensor is."""
    return {
        name.removeprefix(BUFFER): value
        for name, value in script.items()
        if name.startswith(BUFFER)
        and isinstance(value, np.ndarray)
        and name.removeprefix(BUFFER) not in tensors
    }


def write_tensors(path: Path, weights: Arrays) -> None:
    """Write arrays by name: as safetensors if `path` ends so, else as .npz.

    The file appears whole or not at all. UsageError if it cannot be written.
    """
    with refusing(f"the weights cannot be written to {path}"), replacing(path, mode=0o666) as file:
        if path.suffix == ".safetensors":
            file.write(safetensors.numpy.save(weights))
        else:
            _write_npz(file, weights)


def _write_npz(file: BinaryIO, weights: Arrays) -> None:
    """Write a .npz as numpy.savez does, which takes no array of the name `file`."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
