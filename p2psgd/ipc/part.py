"""The part of a model that one rank of a group holds, as a run is described: in its label and tensors' names.

A model that is larger than one device is cut over the ranks of a group, by PyTorch. Rank k of every group
trains part k, in a run of its own. The label of that run says which part it is and how the model is cut, so
parts never mix, and where groups have cut it in different ways both ways stand in the refusal. The name of a
tensor says which block of the whole one it holds, so all parts together are the model again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PARTS_MAX: Final = 1024
LABEL_MAX: Final = 200  # as of a run
COUNT_NAME: Final = "parts"  # the file that holds how many parts a node has, in their state directory
NOTHING: Final = "(no weights)"  # the one tensor of a part to which the cut has given none

STAGE: Final = "a stage of"  # begins the description of a cut that leaves tensors whole, as a pipeline's does

_LABEL: Final = re.compile(r"(?:.*; )?part (\d{1,4})/(\d{1,4}), .*", re.DOTALL)
_BLOCK: Final = re.compile(
    r"(.*)\[(\d{1,10}:\d{1,10}(?:, \d{1,10}:\d{1,10})*) of (\d{1,10}(?:x\d{1,10})*)\]", re.DOTALL
)
_DIRECTORY: Final = re.compile(r"part-(\d{1,4})")

Block = tuple[tuple[int, int], ...]  # for each dimension: begin, end


@dataclass(frozen=True, slots=True)
class Part:
    """Part `index` of `count`, counted from 0; as text `index/count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_part(text: str) -> Part:
    """Return `k/K` as a part, 0 <= k < K <= PARTS_MAX; ValueError otherwise."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= PARTS_MAX):
        raise ValueError(f"{text!r:.40} is not k/K with 0 <= k < K, such as 0/2 for the first of two parts")
    return Part(int(index), int(count))


# ----------------------------------------------------------------------------
# The label of a part's run.


def label_of(label: str, part: Part, cut: str) -> str:
    """Return the label of the part's run, where the whole one has this `label` and the model this `cut`.

    What is too long for it is shortened, the cut before the label, and ends with a hash of the whole.
    """
    its = f"part {part}, "
    mark = f"... ({hashlib.sha256(cut.encode()).hexdigest()[:8]})"
    longest = LABEL_MAX - len(f"; {its}{STAGE} {mark}")
    if len(label) > longest:  # the part stays, or parts would mix, and the begin of the cut, for `is_stage`
        ending = f"... ({hashlib.sha256(label.encode()).hexdigest()[:8]})"
        label = label[: longest - len(ending)] + ending
    whole = f"{label}; {its}{cut}" if label else f"{its}{cut}"
    return whole if len(whole) <= LABEL_MAX else whole[: LABEL_MAX - len(mark)] + mark


def part_of(label: str) -> Part | None:
    """Return the part that the run of this label is, None if it is a whole model."""
    found = _LABEL.fullmatch(label)
    return None if found is None else Part(int(found[1]), int(found[2]))


def is_stage(label: str) -> bool:
    """Return whether the run of this label is a part whose tensors are its own, and whole."""
    found = _LABEL.fullmatch(label)
    return found is not None and label[found.end(2) :].startswith(f", {STAGE} ")


# ----------------------------------------------------------------------------
# The blocks of tensors, and the whole ones.


def name_block(name: str, block: Block, shape: Sequence[int]) -> str:
    """Return the name of this block of a tensor; of all of it, the tensor's own."""
    if all(side == (0, size) for side, size in zip(block, shape, strict=True)):
        return name
    sides = ", ".join(f"{begin}:{end}" for begin, end in block)
    return f"{name}[{sides} of {'x'.join(map(str, shape))}]"


def parse_block(text: str) -> tuple[str, Block, tuple[int, ...]] | None:
    """Return name, block and whole shape of a tensor that is a block of another; None if it is whole."""
    found = _BLOCK.fullmatch(text)
    if found is None:
        return None
    sides = tuple(tuple(map(int, side.split(":"))) for side in found[2].split(", "))
    shape = tuple(map(int, found[3].split("x")))
    block: Block = tuple((begin, end) for begin, end in sides)
    fits = len(block) == len(shape) and all(
        begin <= end <= size for (begin, end), size in zip(block, shape, strict=True)
    )
    return (found[1], block, shape) if fits else None


def repeated_names(parts: Sequence[Iterable[str]]) -> set[str]:
    """Return the names that stand for whole tensors in several of the parts."""
    times = Counter(name for names in parts for name in names if parse_block(name) is None)
    return {name for name, count in times.items() if count > 1}


def name_in_part(name: str, part: int, repeated: Set[str]) -> str:
    """Return the name of a part's tensor in the whole model: one that is `repeated` begins with `part-K.`"""
    return f"part-{part}.{name}" if name in repeated else name


def put_together(
    parts: Sequence[Mapping[str, NDArray[Any]]], repeated: Set[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the whole tensors of all parts, by their own names, in the order in which they come.

    A name that is `repeated`, by default one that stands for whole tensors in several parts, as stages of a
    pipeline may have it, begins with `part-K.` there. ValueError with a sentence if blocks do not make up a
    tensor.
    """
    whole: dict[str, NDArray[Any]] = {}
    held: dict[str, NDArray[np.bool_]] = {}  # which numbers of a cut tensor have come
    repeated = repeated_names(parts) if repeated is None else repeated
    for number, tensors in enumerate(parts):
        for text, values in tensors.items():
            if text == NOTHING:
                continue
            found = parse_block(text)
            if found is None:
                whole[name_in_part(text, number, repeated)] = values
                continue
            name, block, shape = found
            target = whole.get(name)
            if target is None:
                target = whole[name] = np.zeros(shape, values.dtype)
            where = tuple(slice(*side) for side in block)
            place = target[where]
            if target.shape != shape or place.shape != values.shape:
                raise ValueError(f"part {number} has a block of tensor {name!r} that does not fit the others")
            place[...] = values
            if name not in held:
                held[name] = np.zeros(shape, np.bool_)
            if held[name][where].any():
                raise ValueError(
                    f"part {number} has a block of tensor {name!r} that another part has as well"
                )
            held[name][where] = True
    for name, come in held.items():
        if (count := int(come.sum())) != come.size:
            raise ValueError(f"tensor {name!r} has {whole[name].size} numbers, and the parts hold {count}")
    return whole


def check_all_there(parts: Sequence[Part]) -> None:
    """Raise ValueError with a sentence unless these are all parts of one model, in their order."""
    count = parts[0].count
    if [*parts] != [Part(index, count) for index in range(count)]:
        raise ValueError(
            f"a model in {count} parts needs each of them, and here are {', '.join(map(str, parts))}: the"
            " states of others are missing, or left over"
        )


def combine_digests(digests: Sequence[str]) -> str:
    """Return one digest, 16 hexadecimal digits, of those of all parts, in their order."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


# ----------------------------------------------------------------------------
# Where the daemons of all parts of one machine keep their state.


def part_directory(state: Path, index: int) -> Path:
    """Return the state directory of one part in that of all parts."""
    return state / f"part-{index}"


def count_parts(state: Path) -> int | None:
    """Return in how many parts a node was last started whose daemons keep their state there; None if none
    was, or each daemon for itself.
    """
    try:
        return int((state / COUNT_NAME).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def group_directory(state: Path) -> Path:
    """Return the directory of the events that concern all parts: those of their one trainer command."""
    return state / "group"


def part_directories(state: Path) -> list[Path]:
    """Return the state directories of all parts in that of a machine, in order; none if it has no parts."""
    found = []
    try:
        for path in state.iterdir():
            if (match := _DIRECTORY.fullmatch(path.name)) and path.is_dir():
                found.append((int(match[1]), path))
    except OSError:
        return []
    return [path for _, path in sorted(found)]
