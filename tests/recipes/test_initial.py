"""Weights to start from, out of a file."""

from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import UsageError
from p2psgd.cli.weights_file import make_arrays, write_arrays
from p2psgd.recipes.initial import load_initial
from p2psgd.recipes.model import Activation, Shape, Vector, initial_weights

SHAPE = Shape(3, (2,), 2, Activation.SIGMOID)


def flat(tensors: dict[str, Vector]) -> Vector:
    return np.concatenate([tensor.ravel() for tensor in tensors.values()])


@pytest.mark.parametrize("name", ["weights.npz", "weights.safetensors"])
def test_what_an_export_wrote_is_read_in_the_order_of_the_net(tmp_path: Path, name: str) -> None:
    drawn = initial_weights(SHAPE, 7)
    write_arrays(tmp_path / name, make_arrays(flat(drawn), tensors=tuple(SHAPE.tensors)))
    read = load_initial(tmp_path / name, SHAPE)
    assert list(read) == list(drawn)
    assert np.array_equal(flat(read), flat(drawn))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_another_net_is_refused_by_the_tensor(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    write_arrays(path, make_arrays(flat(initial_weights(SHAPE, 7)), tensors=tuple(SHAPE.tensors)))
    wider = Shape(3, (4,), 2, Activation.SIGMOID)
    words = r"layer1\.weight is float32 \(2, 3\), and the recipe's net has float32 \(4, 3\)"
    with pytest.raises(UsageError, match=words):
        load_initial(path, wider)
    with pytest.raises(UsageError, match=r"it lacks layer3\.weight.*; it has .*layer1\.weight"):
        load_initial(path, Shape(3, (2, 2), 2, Activation.SIGMOID))
    deeper = Shape(3, (2, 2), 2, Activation.SIGMOID)  # whose lowest layers would fit
    write_arrays(path, make_arrays(flat(initial_weights(deeper, 7)), tensors=tuple(deeper.tensors)))
    with pytest.raises(UsageError, match=r"of another net, which has layer3\.bias, layer3\.weight as well"):
        load_initial(path, SHAPE)


def test_a_file_that_is_none_or_holds_no_numbers_is_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".safetensors"):
        path = tmp_path / f"weights{suffix}"
        with pytest.raises(UsageError, match=r"^weights file .* cannot be read: No such file"):
            load_initial(path, SHAPE)
        path.write_bytes(b"something else")
        with pytest.raises(UsageError, match=r"^weights file .* (is damaged|is not a \.npz file)"):
            load_initial(path, SHAPE)
    tensors = initial_weights(SHAPE, 7)
    tensors["layer1.bias"][1] = np.nan
    write_arrays(tmp_path / "nan.npz", make_arrays(flat(tensors), tensors=tuple(SHAPE.tensors)))
    with pytest.raises(UsageError, match=r"its layer1\.bias holds a value that is not finite"):
        load_initial(tmp_path / "nan.npz", SHAPE)
