"""Measure the accuracy and the bytes of ternary contributions, for N nodes in one process.

    python -m benchmarks.ternary [--problem digits|cnn|speech] [--nodes 2,4,8] [--seeds 3] [--way NAME ...]

Rounds are deterministic, so nodes need no processes of their own: each makes its contribution from the same
weights (p2psgd/client/ternary.py), the owners add these up and publish (p2psgd/core/owners/aggregator.py),
and all have the same weights again. All nodes together take one mini-batch of 64 samples in a round, as in
[TernGrad 2017, section 6], so that all runs make the same steps. `float32` is the mean of the same gradients.
Bytes are those of whole frames, of contributions to other nodes and of a copy of each publication for each
other node; those of float32 are what a dense ring sends. Prints a line for each way and number of nodes: mean
and spread over seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.client.ternary import CLIP_SIGMAS, TernaryPass
from p2psgd.core.owners.aggregator import Aggregator
from p2psgd.core.owners.ranges import cut, owner_count, range_of
from p2psgd.core.run_spec import RunSpec
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import loss_and_accuracy
from p2psgd.recipes.model import Activation, Net, Shape
from p2psgd.wire import codec
from p2psgd.wire.contribution import encode_words
from p2psgd.wire.frames import CONTRIBUTION_HEADER_BYTES, PREFIX, UPDATE_HEADER_BYTES
from p2psgd.wire.mode import OWNERS_TERNARY

BATCH: Final = 64  # of all nodes together
COVER_BYTES: Final = 12  # of an update, with its base
QUANTUM_LOG2: Final = -20
HALVINGS: Final = 5  # of the learning rate, in the second half

Floats = NDArray[np.float32]


class Problem(Protocol):
    """A net, its data and its rate."""

    tensors: Tensors
    samples: int
    rate: float
    epochs: int

    def initial(self, seed: int) -> Floats:
        """Return the first weights (P,)."""

    def gradient(self, weights: Floats, rows: NDArray[np.int64]) -> Floats:
        """Return the mean gradient (P,) of these samples, in an array of its own."""

    def accuracy(self, weights: Floats) -> tuple[float, float]:
        """Return loss and accuracy on the test samples."""


class FullyConnected:
    """A net of p2psgd's own recipes."""

    def __init__(self, data: str, hidden: tuple[int, ...], *, rate: float, epochs: int) -> None:
        self._dataset = load_dataset(data)
        train = self._dataset.train
        self._shape = Shape(train.inputs, hidden, self._dataset.classes, Activation.RELU)
        self.tensors: Tensors = tuple(self._shape.tensors)
        self.samples, self.rate, self.epochs = len(train.labels), rate, epochs
        self._net = Net(self._shape, BATCH, np)
        self._inputs = np.empty((BATCH, train.inputs), np.float32)

    def initial(self, seed: int) -> Floats:
        chance = np.random.default_rng(seed)
        parts = [
            chance.standard_normal(math.prod(shape)) * math.sqrt(2 / shape[1])
            if len(shape) > 1
            else np.zeros(shape)
            for _, shape in self.tensors
        ]
        return np.concatenate(parts).astype(np.float32)

    def gradient(self, weights: Floats, rows: NDArray[np.int64]) -> Floats:
        train, gradient = self._dataset.train, np.empty_like(weights)
        inputs = self._inputs[: len(rows)]
        train.fill(rows, inputs)
        self._net.gradient(weights, inputs, train.labels[rows], gradient=gradient)
        return gradient

    def accuracy(self, weights: Floats) -> tuple[float, float]:
        return loss_and_accuracy(self._shape, weights, self._dataset.test)


class Convolutional:
    """Two convolutions and a hidden layer on the digits, in PyTorch."""

    rate, epochs = 0.1, 20

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.set_num_threads(1)
        dataset = load_dataset("digits")
        self._sets = [
            (
                torch.from_numpy(_whole(part)).reshape(-1, 1, 8, 8),
                torch.from_numpy(part.labels.astype(np.int64)),
            )
            for part in (dataset.train, dataset.test)
        ]
        self.samples = len(dataset.train.labels)
        nn = torch.nn
        self._model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
        named = self._model.named_parameters()
        self.tensors: Tensors = tuple((name, tuple(each.shape)) for name, each in named)

    def initial(self, seed: int) -> Floats:
        self._torch.manual_seed(seed)
        for module in self._model:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        parts = [each.detach().numpy().ravel() for each in self._model.parameters()]
        return np.concatenate(parts).astype(np.float32)

    def gradient(self, weights: Floats, rows: NDArray[np.int64]) -> Floats:
        self._load(weights)
        inputs, labels = self._sets[0]
        self._model.zero_grad()
        self._torch.nn.functional.cross_entropy(self._model(inputs[rows]), labels[rows]).backward()
        return np.concatenate([each.grad.numpy().ravel() for each in self._model.parameters()])

    def accuracy(self, weights: Floats) -> tuple[float, float]:
        self._load(weights)
        inputs, labels = self._sets[1]
        with self._torch.no_grad():
            outputs = self._model(inputs)
            loss = float(self._torch.nn.functional.cross_entropy(outputs, labels))
        return loss, float((outputs.argmax(1) == labels).float().mean())

    def _load(self, weights: Floats) -> None:
        begin = 0
        for parameter in self._model.parameters():
            end = begin + parameter.numel()
            parameter.data.copy_(self._torch.from_numpy(weights[begin:end]).reshape(parameter.shape))
            begin = end


def _whole(samples: Any) -> Floats:
    inputs = np.empty((len(samples.labels), samples.inputs), np.float32)
    samples.fill(np.arange(len(samples.labels)), inputs)
    return inputs


PROBLEMS: Final[dict[str, Callable[[], Problem]]] = {
    "digits": lambda: FullyConnected("digits", (512, 512), rate=0.2, epochs=20),
    "cnn": Convolutional,
    "speech": lambda: FullyConnected("speech-small", (512, 512, 512), rate=0.15, epochs=1),
}
WAYS: Final[dict[str, dict[str, Any] | None]] = {  # arguments of TernaryPass; None: float32
    "float32": None,
    "ternary": {},
    "no clipping": {"clip_sigmas": math.inf},
    "last layer too": {"full_precision": ()},
}


@dataclass(slots=True)
class Bytes:
    """Bytes that all nodes together have sent."""

    contributed: int = 0
    published: int = 0


class Owners:
    """The owners of a run with this number of nodes."""

    def __init__(self, tensors: Tensors, nodes: int) -> None:
        self._weights = sum(math.prod(shape) for _, shape in tensors)
        spec = RunSpec(tensors, QUANTUM_LOG2, OWNERS_TERNARY.word, "", bytes(32), "stall")
        self._count = owner_count(nodes, self._weights)
        self._owners = [Aggregator(spec) for _ in range(self._count)]
        for place, owner in enumerate(self._owners):
            owner.move(range_of(place, self._count, self._weights))
        self.bytes = Bytes()

    def add(self, node: int, updates: list[tuple[int, NDArray[np.uint32]]]) -> None:
        """Take a node's contribution to the round."""
        given = [0] * self._count
        for magnitude, words in updates:
            for place, part in enumerate(cut(words, self._count, self._weights)):
                for begin in range(0, len(part), codec.indices_max(self._weights)):
                    frame = part[begin : begin + codec.indices_max(self._weights)]
                    self._owners[place].add(frame, magnitude)
                    given[place] += self._bytes(frame, CONTRIBUTION_HEADER_BYTES)
        empty = PREFIX.size + CONTRIBUTION_HEADER_BYTES  # ends the round
        self.bytes.contributed += sum(size or empty for place, size in enumerate(given) if place != node)

    def publish(self, weights: Floats, nodes: int) -> None:
        """Add to the weights what is due."""
        quantum = 2.0**QUANTUM_LOG2
        for owner in self._owners:
            for magnitude, words in owner.take(nodes, alone=nodes == 1, weights=lambda: weights):
                codec.apply_weights(weights, words, magnitude * quantum)
                size = self._bytes(words, UPDATE_HEADER_BYTES + COVER_BYTES)
                self.bytes.published += size * (nodes - 1)  # each other node gets it from one

    def _bytes(self, words: NDArray[np.uint32], header: int) -> int:
        return PREFIX.size + header + len(encode_words(words, self._weights)[1])


def train(
    problem: Problem, nodes: int, seed: int, options: dict[str, Any] | None
) -> tuple[float, float, float]:
    """Return test loss, test accuracy, and bytes that a node sends in a round."""
    chance = np.random.default_rng(seed)
    weights = problem.initial(seed)
    quantum = 2.0**QUANTUM_LOG2
    weights = np.rint(weights / np.float32(quantum)) * np.float32(quantum)
    owners = Owners(problem.tensors, nodes)
    passes = (
        []
        if options is None
        else [TernaryPass(problem.tensors, quantum=quantum, node=node, **options) for node in range(nodes)]
    )
    each, rounds = BATCH // nodes, problem.samples // BATCH
    total = rounds * problem.epochs
    for number in range(total):
        if number % rounds == 0:
            order = chance.permutation(problem.samples)
        rate = problem.rate * 0.5 ** (HALVINGS * max(0.0, 2 * number / total - 1))
        first = (number % rounds) * BATCH
        gradients = (
            problem.gradient(weights, order[first + node * each : first + (node + 1) * each])
            for node in range(nodes)
        )
        if options is None:
            weights = weights - np.float32(rate) * np.mean(list(gradients), axis=0, dtype=np.float32)
            continue
        for node, gradient in enumerate(gradients):
            owners.add(node, passes[node].run(np.float32(-rate / nodes) * gradient, number))
        owners.publish(weights, nodes)
    sent = owners.bytes.contributed + owners.bytes.published
    if options is None:
        sent = total * 2 * (nodes - 1) * 4 * len(weights)
    return *problem.accuracy(weights), sent / total / nodes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ternary", description=__doc__)
    parser.add_argument("--problem", choices=PROBLEMS, default="digits")
    parser.add_argument(
        "--nodes", type=lambda words: [int(each) for each in words.split(",")], default=[2, 4, 8, 16, 32]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--way", action="append", choices=WAYS, help="this one; may be given several times")
    asked = parser.parse_args(arguments)
    problem = PROBLEMS[asked.problem]()
    weights = sum(math.prod(shape) for _, shape in problem.tensors)
    print(
        f"{asked.problem}: {weights:,} weights, {problem.epochs} epochs, clipping at {CLIP_SIGMAS} sigma",
        flush=True,
    )
    for way in asked.way or WAYS:
        for nodes in asked.nodes:
            begun = time.perf_counter()
            found = [train(problem, nodes, seed, WAYS[way]) for seed in range(1, asked.seeds + 1)]
            losses, accuracies, sent = (list(each) for each in zip(*found, strict=True))
            spread = statistics.pstdev(accuracies)
            ratio = 2 * (nodes - 1) / nodes * 4 * weights / statistics.mean(sent) if nodes > 1 else math.nan
            print(
                f"{way}, {nodes} nodes: accuracy {100 * statistics.mean(accuracies):.2f} %"
                f" (spread {100 * spread:.2f}), loss {statistics.mean(losses):.4f},"
                f" {statistics.mean(sent) / 1000:,.1f} kB a round, {ratio:.1f}x,"
                f" {time.perf_counter() - begun:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
