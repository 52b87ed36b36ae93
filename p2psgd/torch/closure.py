"""A closure for `torch.optim.LBFGS` that all nodes evaluate together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.data_digest import DIGEST_BYTES, CountedSamples, digest_data, row_step, sampled_rows
from p2psgd.client.objective import Objective
from p2psgd.torch.shards import is_cut

LossFunction = Callable[..., Any]
DTYPES = (torch.float32, torch.float64)


class ModelClosure(Objective):
    """The closure that `p2psgd.torch.closure` returns; close it, or use it in a with block.

    Attributes:
        link: The link of this script.
        value: The loss at the last call, as float64; None before the first.
    """

    def __init__(
        self,
        model: Any,
        loss: LossFunction,
        dataset: tuple[Any, ...],
        portions: int | None,
        options: dict[str, Any],
    ) -> None:
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        initial = {name: np.zeros(tuple(each.shape), np.float32) for name, each in named.items()}
        super().__init__(initial, portions, options)
        self.value: float | None = None
        self._parameters = list(named.values())
        self._dtype = self._parameters[0].dtype
        self._whole = False  # whether no evaluation has ended early since the parameters were a result
        self._model = model
        self._loss = loss
        self._dataset = dataset
        self._samples = len(dataset[0])
        self._data = CountedSamples(self._samples, b"".join(map(_digest_tensor, dataset)))

    def __call__(self) -> Any:
        """Return the mean loss over all data, and leave its gradient in the parameters."""
        self._whole = False
        value, gradient = self._evaluate(self._compute, self._flat(), self._data)
        self._whole, self.value, start = True, value, 0
        for each in self._parameters:
            part = torch.from_numpy(gradient[start : start + each.numel()])
            each.grad = part.reshape(each.shape).to(each)
            start += each.numel()
        return torch.tensor(value, dtype=self._parameters[0].dtype)

    def _flat(self) -> NDArray[Any]:
        with torch.no_grad():
            flat = torch.cat([each.reshape(-1) for each in self._parameters])
            return np.asarray(flat.to("cpu", self._dtype))

    def _keep_result(self) -> None:
        """Keep the parameters: an optimizer may end at a point that it did not evaluate last."""
        if self._whole:
            self.link._keeping.note_point(self._flat(), is_end=True)

    def _compute(self, _: Any, samples: range) -> tuple[float, Any]:
        """Return this portion's part of the mean loss and of its gradient, at the parameters as they are."""
        batch = [each[samples.start : samples.stop] for each in self._dataset]
        with torch.enable_grad():
            loss = self._loss(self._model, *batch)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        part = len(samples) / self._samples
        flat = [
            torch.zeros(each.numel()) if found is None else found.detach().reshape(-1).cpu()
            for each, found in zip(self._parameters, gradients, strict=True)
        ]
        return float(loss.detach()) * part, torch.cat(flat).double().numpy() * part


def _digest_tensor(tensor: Any) -> bytes:
    """Return the digest of a tensor on any device; of its type and shape alone if it has no plain rows."""
    if not isinstance(tensor, torch.Tensor):
        return digest_data(tensor)
    words = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    try:
        step = row_step(tensor[0].numel())
        rows = torch.stack([tensor[row].detach().reshape(-1)[::step] for row in sampled_rows(len(tensor))])
        words += rows.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    except (IndexError, RuntimeError, TypeError):  # none, or they are sparse, quantized or nested
        pass
    return hashlib.blake2b(words, digest_size=DIGEST_BYTES).digest()


def closure(
    model: Any, loss_fn: LossFunction, dataset: Any, *, portions: int | None = None, **options: Any
) -> ModelClosure:
    """Attach a model, and return the closure that `torch.optim.LBFGS` calls.

    All nodes run the same script and end with the same parameters, to the bit, if they compute alike: on
    processors of one kind, with as many threads, by `torch.set_num_threads(1)`. They must begin with the same
    parameters: call `torch.manual_seed` before the model is made.

    Args:
        model: The model, a `torch.nn.Module`. Parameters that require a gradient are trained; all of them are
            float32, or all are float64.
        loss_fn: Called with the model and the tensors of a portion, `loss_fn(model, inputs, targets)`.
            Returns the mean loss over these samples. It must give the same number for the same samples: no
            dropout, and no batch normalization in training.
        dataset: A tensor, a tuple of tensors, or a `torch.utils.data.TensorDataset`. The first axis is that
            of the samples.
        portions: As of `Link.evaluate`. Default: 64, or one for each sample if there are fewer.
        **options: Options of `p2psgd.attach`, such as `label` and `control`.

    Returns:
        The closure. Each call returns the mean loss over all data and sets the gradients of the parameters.

    Raises:
        TrainerError: the model or the dataset cannot be used; or as from `p2psgd.attach`. Calls of the
            closure raise it as `Link.evaluate` does.

    Example:
        ```python
        with p2psgd.torch.closure(model, loss_fn, (x, y)) as closure:
            torch.optim.LBFGS(model.parameters(), max_iter=500).step(closure)
        ```
    """
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    cut = next((name for name, each in named.items() if is_cut(each)), None)
    if cut is not None:
        raise TrainerError(
            f"closure: parameter {cut!r} is cut over a group of ranks, and a closure evaluates whole models:"
            " give it a model that fits one device"
        )
    kinds = {each.dtype for each in named.values()}
    if len(kinds) != 1 or not kinds <= set(DTYPES):
        found = ", ".join(sorted(map(str, kinds))) or "none"
        raise TrainerError(f"closure: parameters must be all float32 or all float64; they are {found}")
    tensors = getattr(dataset, "tensors", dataset)
    tensors = tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,)
    lengths = {len(each) for each in tensors}
    if len(lengths) != 1:
        words = f"the tensors of the dataset have {sorted(lengths)} samples"
        raise TrainerError(f"closure: {words}: give as many of each")
    return ModelClosure(model, loss_fn, tensors, portions, options)
