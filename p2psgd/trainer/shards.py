"""A folder of .npz shards, read by memory map: data larger than memory, or shared by several trainers.

Every shard holds x_train with y_train, x_test with y_test, or all four; shards are taken in the order of
their names. An array inside a .npz file can be mapped when it is stored as it is, which numpy.savez does and
numpy.savez_compressed does not: a compressed one is refused with these words. Labels are read at once and
checked; values are checked mini-batch by mini-batch as they are first used, since reading them all would be
what mapping is there to avoid. For the same reason the archive's own checksums are not verified.

Mini-batches are drawn from all shards at random: on a disk that seeks slowly, keep the folder small enough
for the page cache.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2psgd.trainer.array_file import reading
from p2psgd.trainer.net import Labels
from p2psgd.trainer.refusal import bad_data, check_finite, check_kind, check_pair

LOCAL_HEADER_BYTES = 30  # of a zip member, before its name and extra field (PKWARE APPNOTE 4.3.7)


@dataclass(frozen=True)
class Shard:
    """The mapped values and the labels of one file, either its training or its test part."""

    path: Path
    values: NDArray[np.generic]  # (n, inputs), mapped
    labels: Labels  # (n,)


class MappedSamples:
    """The training or the test samples of all shards, numbered through."""

    def __init__(self, part: str, shards: list[Shard]) -> None:
        self._name = f"x_{part}"
        self._shards = shards
        self._starts = np.cumsum([0, *(len(shard.labels) for shard in shards)])
        self._labels = np.concatenate([shard.labels for shard in shards])

    @property
    def inputs(self) -> int:
        return int(self._shards[0].values.shape[1])

    @property
    def labels(self) -> Labels:
        return self._labels

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        """Write the samples with these indices into `batch`; raises UsageError on NaN and infinity."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers):
            here = numbers == number
            shard = self._shards[number]
            local = rows[here] - self._starts[number]
            with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused
                values = shard.values[local].astype(np.float32)
            check_finite(shard.path, self._name, values, local)
            batch[here] = values


def load_folder(folder: Path) -> tuple[MappedSamples, MappedSamples]:
    """Map all .npz files of a folder; raises UsageError naming the file and the array that cannot be used."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise bad_data(folder, "the folder holds no .npz files")
    parts: dict[str, list[Shard]] = {"train": [], "test": []}
    for path in paths:
        _add_shards(path, parts)
    for part, shards in parts.items():
        if not shards:
            raise bad_data(folder, f"no .npz file in the folder has x_{part} and y_{part}")
        widths = {shard.values.shape[1]: shard.path.name for shard in shards}
        if len(widths) > 1:
            said = ", ".join(f"{width} in {name}" for width, name in widths.items())
            raise bad_data(folder, f"x_{part} has not the same number of values a sample everywhere: {said}")
    return MappedSamples("train", parts["train"]), MappedSamples("test", parts["test"])


def _add_shards(path: Path, parts: dict[str, list[Shard]]) -> None:
    with reading(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        found = False
        for part, shards in parts.items():
            names = (f"x_{part}", f"y_{part}")
            present = [name for name in names if name in members]
            if not present:
                continue
            if len(present) == 1:
                missing = names[present[0] == names[0]]
                raise bad_data(path, f"it has {present[0]} but lacks {missing}")
            values, labels = (map_member(path, name, members[name]) for name in names)
            check_kind(path, names[0], values, dimensions=2)
            check_kind(path, names[1], labels, dimensions=1)
            check_pair(path, part, values, labels)
            shards.append(Shard(path, values, labels.astype(np.int32)))
            found = True
        if not found:
            has = ", ".join(members) or "nothing"
            raise bad_data(path, f"it lacks x_train and y_train, and x_test and y_test; it has {has}")


def map_member(path: Path, name: str, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    """Map one array of a .npz file, read-only, where it lies in the file."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise bad_data(
            path,
            f"{name} is compressed and cannot be mapped: save it with numpy.savez, not savez_compressed",
        )
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER_BYTES)
        extra = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        file.seek(extra, 1)
        start = file.tell()
        match np.lib.format.read_magic(file):
            case (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            case (2, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
            case version:
                raise bad_data(
                    path, f"{name} is in .npy format {version}: save plain numbers with numpy.savez"
                )
        offset = file.tell()
    if (
        dtype.hasobject
        or (offset - start) + dtype.itemsize * int(np.prod(shape, dtype=object)) != info.file_size
    ):
        raise bad_data(path, f"{name} is damaged: its shape {shape} of {dtype} does not fit its size")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
