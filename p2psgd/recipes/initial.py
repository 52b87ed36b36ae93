"""The weights that training starts from: drawn, or read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.datasets import load_arrays, reading
from p2psgd.recipes.model import Shape, Vector, initial_weights
from p2psgd.recipes.recipe import Recipe

# A file holds the weights of a net that was trained before, here or elsewhere, and all nodes have a copy of
# it. Which weights a run starts from is part of what its nodes agree on, so nodes with different files refuse
# each other.


WHAT: Final = "weights file"


def starting_weights(recipe: Recipe, shape: Shape, initial: Path | None) -> dict[str, Vector]:
    """Return the tensors of this net by name, from the file `initial` (.npz or .safetensors) or, if None,
    drawn.

    Raises UsageError if the file does not hold this net.
    """
    if initial is not None:
        return load_initial(initial, shape)
    return initial_weights(shape, recipe.seed)


def load_initial(path: Path, shape: Shape) -> dict[str, Vector]:
    """Read the tensors of a net, in its order; UsageError that names the file and the tensor at fault."""
    if path.suffix == ".safetensors":
        with reading(path, WHAT):
            try:
                arrays = safetensors.numpy.load(path.read_bytes())
            except safetensors.SafetensorError as error:
                raise ValueError(error) from None
    else:
        arrays = load_arrays(path, None, WHAT)
    tensors: dict[str, Vector] = {}
    for name, wanted in shape.tensors:
        values = arrays.get(name)
        if values is None:
            raise _unfit(path, f"it lacks {name}; it has {', '.join(sorted(arrays)):.300}")
        if values.dtype != np.float32 or values.shape != wanted:
            has = f"{values.dtype} {values.shape}"
            raise _unfit(path, f"its {name} is {has}, and the recipe's net has float32 {wanted}")
        if not np.isfinite(values).all():
            raise _unfit(path, f"its {name} holds a value that is not finite")
        tensors[name] = values
    others = sorted(arrays.keys() - tensors.keys())
    if others:
        raise _unfit(path, f"it is of another net, which has {', '.join(others):.300} as well")
    return tensors


def _unfit(path: Path, words: str) -> UsageError:
    return UsageError(f"{path} does not hold the weights to start from: {words}", ExitCode.DATA)
