"""Select the parameters of a model that are trained together with the other nodes, as one flat tensor.

These are all that require a gradient, each once, in the order of `model.named_parameters()`. Each becomes a
view of its part of the flat tensor, so that one pass over that tensor sees the whole model; one of bfloat16
or float16 gets its master there (masters.py). It stays the same Parameter object, so references to it stay
valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.base.formatting import say
from p2psgd.ipc.part import NOTHING
from p2psgd.torch.arrays import Named
from p2psgd.torch.group import Group
from p2psgd.torch.masters import ROUNDED_TYPES, Masters
from p2psgd.torch.shards import LocalShards, ShardsInPlace, array_of, is_cut, local_of

Range = tuple[int, int]  # of the flat tensor: begin, end
DEVICES = ("cpu", "cuda")


class TrainedParameters:
    """The trained parameters of one model, each changed by one of the optimizers; they are only checked until
    `lay_out`.

    `ranges` are their places in the flat tensor, by name. Raises TrainerError for a model or optimizer that
    p2psgd cannot train.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any], group: Group | None = None) -> None:
        """Take the `group` over whose ranks the model is cut, if it is: its blocks are trained here."""
        _check_kinds(model, optimizers)
        self._optimizers = optimizers
        named = dict(model.named_parameters())
        self._left_out = {name: each for name, each in named.items() if not _is_trained(each)}
        self.named: Named = {name: each for name, each in named.items() if _is_trained(each)}
        self._in_group = group is not None
        if group is not None:
            self.named = group.own
        self._places = [  # of all modules and parameters; a tied one has several
            (path, holder, name, held)
            for path, module in model.named_modules()
            for holder in (module._modules, module._parameters)
            for name, held in holder.items()
            if not is_cut(held)  # FSDP has whole ones in their place at times
        ]
        self._pointers: dict[str, int] = {}
        self.masters = Masters()
        self.shards = LocalShards()
        self._groups = self._find_groups(model)
        self._optimized = _optimized(optimizers)
        self.device = self._check_values()
        self._check_memory(model)
        self.ranges: dict[str, Range] = {}
        self.weights = 0
        for name, parameter in self.named.items():
            begin, self.weights = self.weights, self.weights + local_of(parameter).numel()
            self.ranges[name] = (begin, self.weights)
        if not self.named:  # a rank to which the cut has given none
            self.ranges[NOTHING], self.weights = (0, 1), 1

    @property
    def rates(self) -> list[float]:
        """The learning rate of each parameter, in order; 1 for a group without one."""
        by_group = [
            [1.0 if (rate := group.get("lr")) is None else float(rate) for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        return [by_group[optimizer][group] for optimizer, group in self._groups] or [1.0]

    @property
    def owners(self) -> list[int]:
        """The optimizer of each parameter, in order, counted from 0."""
        return [optimizer for optimizer, _ in self._groups] or [0]

    def say_frozen(self) -> None:
        """Say that other nodes do not get the frozen parameters, if there are any."""
        frozen = [name for name, each in self._left_out.items() if each.numel()]
        if frozen:
            say(
                f"rank 0 gives no frozen parameters to others, and this model has {len(frozen)}, such as"
                f" {frozen[0]!r}: load them from a file, or call torch.manual_seed, on all nodes"
            )

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return the parameters' numbers now, in the host's memory."""
        if not self.named:
            return {NOTHING: np.zeros(1, np.float32)}
        return {name: local_of(each).float().cpu().numpy() for name, each in self.named.items()}

    def lay_out(self, *, in_place: bool = False) -> tuple[Any, Any]:
        """Move all parameters into one flat tensor (P,) float32 on their device, and make the `masters` of
        those of another type; return it, and one for their changes.

        While the optimizer steps, the float32 gradients of rounded parameters lie in the second. `in_place`:
        shards of float32 stay out of the first, and nothing else is in the second; what is not used of both
        takes no memory.
        """
        make = torch.empty if in_place else torch.zeros
        flat, change = (make(self.weights, dtype=torch.float32, device=self.device) for _ in range(2))
        triples, pairs = [], []
        for name, parameter in self.named.items():
            begin, end = self.ranges[name]
            if in_place and _stays(parameter):
                continue
            local = local_of(parameter)
            part = flat[begin:end].view(local.shape)
            part.copy_(local)
            if parameter.dtype in ROUNDED_TYPES:
                triples.append((parameter, part, change[begin:end].view(local.shape)))
            elif is_cut(parameter):
                pairs.append((parameter, part))
                continue
            else:
                parameter.data = part
            self._pointers[name] = local_of(parameter).data_ptr()
        self.masters, self.shards = Masters(triples), LocalShards(pairs)
        return flat, change

    @property
    def fit_in_place(self) -> bool:
        """Return whether all shards of float32 can be trained where they are, in the host's memory."""
        shards = [each for each in self.named.values() if _stays(each)]
        return self.device.type == "cpu" and all(array_of(each) is not None for each in shards)

    def arrays_in_place(self, flat: Any) -> list[Any]:
        """Return arrays that have all numbers one after the other: the shards of float32 where they are now,
        and what is between them of `flat`, an array of the first tensor of `lay_out(in_place=True)`.
        """
        arrays, done = [], 0
        for name, parameter in self.named.items():
            if _stays(parameter):
                begin, end = self.ranges[name]
                arrays += [flat[done:begin], array_of(parameter)]
                done = end
        return [each for each in (*arrays, flat[done:]) if each.size]

    def shards_in_place(self) -> ShardsInPlace:
        """Return what notes that PyTorch has given these shards other memory."""
        return ShardsInPlace(each for each in self.named.values() if _stays(each))

    def check(self) -> None:
        """Raise TrainerError if model or optimizer have other parameters than at `lay_out`."""
        for path, holder, name, held in self._places:
            if holder.get(name) is not held:
                raise TrainerError(
                    f"{f'{path}.{name}'.lstrip('.')!r} of the model is another one than when"
                    " p2psgd.torch.attach was called: change the model before that"
                )
        for name, pointer in self._pointers.items():
            if local_of(self.named[name]).data_ptr() != pointer:
                raise TrainerError(
                    f"parameter {name!r} has been given other memory since p2psgd.torch.attach was called, by"
                    " model.to() or by an assignment: do that before, and later change its numbers in place"
                )
        for name, parameter in self._left_out.items():
            if parameter.requires_grad and parameter.numel():
                raise TrainerError(
                    f"parameter {name!r} was frozen when p2psgd.torch.attach was called, so other nodes do"
                    " not have it: let it require its gradient until then, and freeze it afterwards"
                )
        if _optimized(self._optimizers) != self._optimized:
            raise TrainerError(
                "the optimizer has other parameters than when p2psgd.torch.attach was called: call"
                " add_param_group before that, and leave the groups as they are"
            )

    def _find_groups(self, model: Any) -> Sequence[tuple[int, int]]:
        """Return the optimizer of each parameter, and its group there."""
        known = {id(parameter): name for name, parameter in model.named_parameters()}
        groups: dict[int, tuple[int, int]] = {}
        for owner, number, place, parameter in _walk(self._optimizers):
            if id(parameter) not in known:
                raise TrainerError(
                    f"parameter {place} of group {number} of the {type(self._optimizers[owner]).__name__}, of"
                    f" shape {tuple(parameter.shape)}, is none of the model's: make the optimizer of"
                    " model.parameters(), and give attach the whole model"
                )
            if groups.get(id(parameter), (owner, 0))[0] != owner:
                raise TrainerError(
                    f"two optimizers have parameter {known[id(parameter)]!r}: give each parameter to one"
                )
            groups[id(parameter)] = (owner, number)
        if not self.named and not self._in_group:
            raise TrainerError("the model has no parameter that requires a gradient: nothing can be trained")
        for name, parameter in self.named.items():
            if id(parameter) not in groups:
                raise TrainerError(
                    f"parameter {name!r} requires a gradient and is in no group of the optimizer: add it, or"
                    " freeze it by requires_grad_(False)"
                )
        return [groups[id(parameter)] for parameter in self.named.values()]

    def _check_values(self) -> Any:
        """Check the parameters' numbers; return the one device that they are all on."""
        if not self.named:
            return torch.device("cpu")
        first, device = next((name, each.device) for name, each in self.named.items())
        for name, parameter in self.named.items():
            if torch.nn.parameter.is_lazy(parameter):
                raise TrainerError(
                    f"parameter {name!r} has no shape yet: run the model once before p2psgd.torch.attach"
                )
            if parameter.dtype not in (torch.float32, *ROUNDED_TYPES):
                raise TrainerError(
                    f"parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}, and p2psgd trains"
                    " float32, bfloat16 and float16: call model.float()"
                )
            if parameter.layout != torch.strided:
                raise TrainerError(f"parameter {name!r} is {parameter.layout}; p2psgd trains dense ones")
            if parameter.device != device:
                raise TrainerError(
                    f"parameter {name!r} is on {parameter.device} and {first!r} on {device}: p2psgd trains a"
                    " model that is on one device"
                )
        if device.type not in DEVICES:
            raise TrainerError(f"the model is on {device}: p2psgd trains on {' and '.join(DEVICES)}")
        return device

    def _check_memory(self, model: Any) -> None:
        """Check that no parameter shares memory with another tensor of the model."""
        spans = sorted(
            (*_span(each), name)
            for name, each in (*self.named.items(), *self._left_out.items(), *model.named_buffers())
            if each.device == self.device and type(each) in (torch.Tensor, torch.nn.Parameter)
        )
        last = last_trained = (0, "")  # where the one that reaches furthest ends
        for begin, end, name in spans:
            trained = name in self.named
            reach, other = last if trained else last_trained
            if begin < reach:
                raise TrainerError(
                    f"{other!r} and {name!r} of the model have memory in common, which would end here: tie"
                    " parameters by assigning one Parameter to both places, and make a buffer a clone()"
                )
            last = max(last, (end, name))
            last_trained = max(last_trained, (end, name)) if trained else last_trained


def _span(tensor: Any) -> tuple[int, int]:
    """Return the addresses of a tensor, begin and end; none where it has no memory of the plain kind."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided or not tensor.numel():
        return 0, 0
    last = sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin: int = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _check_kinds(model: Any, optimizers: Sequence[Any]) -> None:
    fits = bool(optimizers) and all(isinstance(each, torch.optim.Optimizer) for each in optimizers)
    if not isinstance(model, torch.nn.Module) or not fits:
        raise TrainerError(
            "p2psgd.torch.attach takes a torch.nn.Module and its torch.optim.Optimizer, or a list of several;"
            f" it was given {type(model).__name__} and"
            f" {', '.join(type(each).__name__ for each in optimizers) or 'an empty list'}"
        )
    if len({id(each) for each in optimizers}) < len(optimizers):
        raise TrainerError("p2psgd.torch.attach was given one optimizer twice: name each once")
    if any(isinstance(each, torch.jit.ScriptModule) for each in model.modules()):
        raise TrainerError(
            "the model is scripted or traced by torch.jit, which takes no hooks: give p2psgd.torch.attach the"
            " plain module, and torch.compile what is to be faster"
        )
    if any(isinstance(each, torch.optim.LBFGS) for each in optimizers):
        raise TrainerError(
            "LBFGS compares gradients of one step with those of the next, and here the weights change in"
            " between: take SGD, Adam or another one that does not"
        )


def _stays(parameter: Any) -> bool:
    """Return whether a parameter is a shard whose numbers are those of the run."""
    return is_cut(parameter) and parameter.dtype == torch.float32


def _is_trained(parameter: Any) -> bool:
    lazy = torch.nn.parameter.is_lazy(parameter)
    return bool(parameter.requires_grad and (lazy or parameter.numel()))


def _walk(optimizers: Sequence[Any]) -> Iterator[tuple[int, int, int, Any]]:
    """Yield the optimizer, group and place of each parameter, and the parameter."""
    for owner, optimizer in enumerate(optimizers):
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                yield owner, number, place, parameter


def _optimized(optimizers: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return the optimizer, the group and the parameter for each parameter of each group."""
    return [(owner, number, id(each)) for owner, number, _, each in _walk(optimizers)]
