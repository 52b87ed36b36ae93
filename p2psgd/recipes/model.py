"""A fully connected net: sigmoid or ReLU hidden layers, softmax and cross-entropy at the end.

All parameters are views into one flat float32 vector, in the order of the tensors, because that is what the
link holds and what an update's indices count through. The gradient is written into views of another such
vector, and every array that a mini-batch needs is made once, so that a step allocates nothing worth naming.
The net keeps no weights of its own: its caller passes them. It computes with numpy, or with any module that
has the same functions, such as CuPy, on arrays of that module's.

A layer's weights are (out, in), a row being the weights into one unit. In an update neighbours are then
weights into the same unit, which share the sign of that unit's error where the inputs are never negative, and
equal signs in a row are what the coding of signs makes short.

It does not choose samples, learning rates or what is sent.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Labels = NDArray[np.int32]


class Activation(enum.Enum):
    """Functions that a hidden layer can apply to its sums."""

    RELU = "relu"
    SIGMOID = "sigmoid"


@dataclass(frozen=True)
class Shape:
    """The widths of a net from input to output, and its activation."""

    inputs: int
    hidden: tuple[int, ...]
    classes: int
    activation: Activation

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Return (width in, width out) of every layer, the output layer last."""
        return list(pairwise((self.inputs, *self.hidden, self.classes)))

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and shapes in their order in the flat vector; a layer computes `x @ weight.T +
        bias`.
        """
        shapes: list[tuple[int, ...]] = []
        for width_in, width_out in self.layers:
            shapes += [(width_out, width_in), (width_out,)]
        return list(zip(tensor_names(len(self.layers)), shapes, strict=True))

    @property
    def weights(self) -> int:
        """Return P, the length of the flat vector."""
        return sum((width_in + 1) * width_out for width_in, width_out in self.layers)


def tensor_names(layers: int) -> list[str]:
    """Return the names of the tensors of a net with this many layers, in their order in the flat vector."""
    return [name for number in range(1, layers + 1) for name in layer_tensors(number)]


def layer_tensors(number: int) -> tuple[str, str]:
    """Return the names of the weight and the bias of a layer, counted from 1."""
    return f"layer{number}.weight", f"layer{number}.bias"


def flat(tensors: Mapping[str, Vector]) -> Vector:
    """Return the numbers of all tensors, (P,), in their order."""
    return np.concatenate([tensor.ravel() for tensor in tensors.values()])


def initial_weights(shape: Shape, seed: int) -> dict[str, Vector]:
    """Draw the tensors that every node starts from: uniform, biases 0.

    Bounds: sqrt(6 / in) before a ReLU (He et al. 2015), sqrt(6 / (in + out)) before the softmax and four
    times that before a sigmoid (Glorot and Bengio 2010). The draw uses PCG64's raw output, which numpy
    promises never to change, and correctly rounded arithmetic: the same seed gives the same bits on every
    machine. It runs from input to input, so that a seed still starts the net that the recipes' page has
    measured.
    """
    stream = np.random.PCG64(seed)
    tensors: dict[str, Vector] = {}
    last = len(shape.layers)
    for number, (width_in, width_out) in enumerate(shape.layers, start=1):
        match shape.activation:
            case _ if number == last:
                bound = np.sqrt(6.0 / (width_in + width_out))
            case Activation.RELU:
                bound = np.sqrt(6.0 / width_in)
            case Activation.SIGMOID:
                bound = 4.0 * np.sqrt(6.0 / (width_in + width_out))
        raw = stream.random_raw(width_in * width_out)
        unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1), 53 random bits
        drawn = ((2.0 * unit - 1.0) * bound).astype(np.float32).reshape(width_in, width_out)
        tensors[f"layer{number}.weight"] = np.ascontiguousarray(drawn.T)
        tensors[f"layer{number}.bias"] = np.zeros(width_out, np.float32)
    return tensors


class Net:
    """The arithmetic of one shape for mini-batches of up to `batch_max` samples, by the functions of `xp`, in
    numbers of one `dtype`.
    """

    def __init__(self, shape: Shape, batch_max: int, xp: ModuleType = np, dtype: str = "float32") -> None:
        self.shape = shape
        self.batch_max = batch_max
        self._xp = xp
        self._sums = [xp.empty((batch_max, width), dtype) for _, width in shape.layers]
        self._errors = [xp.empty((batch_max, width), dtype) for _, width in shape.layers[:-1]]
        self._slopes = [xp.empty((batch_max, width), dtype) for _, width in shape.layers[:-1]]
        self._active = [xp.empty((batch_max, width), np.bool_) for _, width in shape.layers[:-1]]
        self._column = xp.empty((batch_max, 1), dtype)
        self._rows = xp.arange(batch_max)
        self._names = [layer_tensors(number) for number in range(1, len(shape.layers) + 1)]

    def loss(self, weights: Vector, inputs: NDArray[np.float32], labels: Labels) -> tuple[float, int]:
        """Return the mean cross-entropy in nats and how many of the samples are classified correctly.

        weights (P,), inputs (rows, inputs), labels (rows,), rows <= batch_max.
        """
        logits = self._forward(weights, inputs)
        correct = int(self._xp.count_nonzero(logits.argmax(axis=1) == labels))
        return self._softmax(logits, labels), correct

    def gradient(
        self,
        weights: Vector,
        inputs: NDArray[np.float32],
        labels: Labels,
        *,
        gradient: Vector | Mapping[str, Vector],
        ready: Callable[[int], None] = lambda layer: None,
    ) -> float:
        """Write the gradient of the mean cross-entropy into `gradient` and return that mean, in nats.

        Shapes as in loss(); `gradient` is (P,), or has an array of each tensor's shape by its name.
        `ready(layer)` is called as soon as weight and bias of a layer, counted from 1, are whole, the output
        layer's first: what follows does not touch them. When the net has diverged the mean is not finite and
        there is no gradient, and no warning: the caller looks.
        """
        xp, rows = self._xp, len(inputs)
        logits = self._forward(weights, inputs)
        loss = self._softmax(logits, labels)
        if not math.isfinite(loss):
            return loss
        error = logits  # now probabilities; minus 1 at the label it is d loss / d logits, times rows
        error[self._rows[:rows], labels] -= 1.0
        error *= 1.0 / rows
        parameters = list(self._layers(weights))
        slots = self._slots(gradient)
        with np.errstate(over="ignore", invalid="ignore"):
            for layer in range(len(slots) - 1, -1, -1):
                below = inputs if layer == 0 else self._sums[layer - 1][:rows]
                weight_slot, bias_slot = slots[layer]
                xp.matmul(error.T, below, out=weight_slot)  # (out, rows) @ (rows, in)
                xp.sum(error, axis=0, out=bias_slot)
                ready(layer + 1)
                if layer:
                    passed = self._errors[layer - 1][:rows]
                    xp.matmul(error, parameters[layer][0], out=passed)  # (rows, out) @ (out, in)
                    self._times_slope(passed, below, layer - 1)
                    error = passed
        return loss

    def _slots(self, gradient: Vector | Mapping[str, Vector]) -> list[tuple[Vector, Vector]]:
        """Return where each layer's gradient goes: (weight (out, in), bias (out,))."""
        if isinstance(gradient, Mapping):
            return [(gradient[weight], gradient[bias]) for weight, bias in self._names]
        return list(self._layers(gradient))

    def _layers(self, flat: Vector) -> Iterator[tuple[Vector, Vector]]:
        """Return views (weight (out, in), bias (out,)) of each layer into a flat vector (P,)."""
        start = 0
        for width_in, width_out in self.shape.layers:
            middle = start + width_in * width_out
            yield flat[start:middle].reshape(width_out, width_in), flat[middle : middle + width_out]
            start = middle + width_out

    def _forward(self, weights: Vector, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits (rows, classes), a view that the next call overwrites."""
        xp, rows = self._xp, len(inputs)
        values = inputs
        last = len(self._sums) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, (weight, bias) in enumerate(self._layers(weights)):
                sums = self._sums[layer][:rows]
                xp.matmul(values, weight.T, out=sums)  # (rows, in) @ (in, out)
                sums += bias
                if layer < last:
                    self._activate(sums)
                values = sums
        return values

    def _softmax(self, logits: NDArray[np.float32], labels: Labels) -> float:
        """Turn logits into probabilities in place and return the mean cross-entropy."""
        xp, rows = self._xp, len(logits)
        column = self._column[:rows]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            xp.max(logits, axis=1, keepdims=True, out=column)
            logits -= column
            chosen = xp.sum(logits[self._rows[:rows], labels], dtype=np.float64)
            xp.exp(logits, out=logits)
            xp.sum(logits, axis=1, keepdims=True, out=column)
            logits /= column
            return float(xp.sum(xp.log(column), dtype=np.float64) - chosen) / rows

    def _activate(self, sums: NDArray[np.float32]) -> None:
        xp = self._xp
        match self.shape.activation:
            case Activation.RELU:
                xp.maximum(sums, 0.0, out=sums)
            case Activation.SIGMOID:
                xp.negative(sums, out=sums)
                xp.exp(sums, out=sums)
                sums += 1.0
                xp.reciprocal(sums, out=sums)

    def _times_slope(self, error: NDArray[np.float32], values: NDArray[np.float32], layer: int) -> None:
        """Multiply an error by the activation's derivative, which follows from the activation's value."""
        xp, rows = self._xp, len(error)
        match self.shape.activation:
            case Activation.RELU:
                active = self._active[layer][:rows]
                xp.greater(values, 0.0, out=active)
                xp.multiply(error, active, out=error)
            case Activation.SIGMOID:
                slope = self._slopes[layer][:rows]
                xp.subtract(1.0, values, out=slope)
                slope *= values
                error *= slope
