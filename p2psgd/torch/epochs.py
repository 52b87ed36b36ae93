"""Go through epochs of a node's part of the data, and go on in the middle of one after a restart.

How far a node has come is the number of its steps, which its daemon counts and which is never behind. A
script's own state is kept once a minute or so, and schedulers are brought from there to the present.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, DistributedSampler

from p2psgd.base.errors import TrainerError


class NodeSampler(DistributedSampler):  # type: ignore[misc]
    """PyTorch's sampler for one node's part of a dataset.

    Attributes:
        left_out: The samples at the begin of the next epoch that the node has used before it was started
            again.
        stopping: Says whether the epoch is to end where it is.
    """

    left_out = 0
    stopping: Callable[[], bool] = staticmethod(lambda: False)

    def __iter__(self) -> Iterator[int]:
        begin, self.left_out = self.left_out, 0
        for index in list(super().__iter__())[begin:]:
            if self.stopping():
                return
            yield index


class Epochs:
    """The epochs of one script: `count` of them through `loader`, a step each `accumulate` batches.

    Schedulers are stepped by the script, each of `step_schedulers` after every optimizer step and each of
    `epoch_schedulers` after every epoch. TrainerError if an argument is not what it must be.
    """

    def __init__(
        self,
        count: int,
        loader: Any,
        *,
        step_scheduler: Any = None,
        epoch_scheduler: Any = None,
        accumulate: int = 1,
    ) -> None:
        for name, number in (("the number of epochs", count), ("accumulate", accumulate)):
            if type(number) is not int or number < 1:
                raise TrainerError(f"{name} {number!r:.100} is refused: give a whole number from 1 on")
        if not isinstance(loader, DataLoader):
            raise TrainerError(
                f"epochs takes the torch.utils.data.DataLoader that the loop goes through; it was given a"
                f" {type(loader).__name__}"
            )
        self.step_schedulers, self.epoch_schedulers = _listed(step_scheduler), _listed(epoch_scheduler)
        self._count, self._loader = count, loader
        self._batches = accumulate
        self._steps = max(1, len(loader) // accumulate)  # of an epoch

    def catch_up(self, steps: int) -> None:
        """Bring the schedulers to where they belong after this number of steps of this node."""
        for scheduler in self.step_schedulers:
            _catch_up(scheduler, steps)
        for scheduler in self.epoch_schedulers:
            _catch_up(scheduler, steps // self._steps)

    def run(self, steps: int) -> Iterator[int]:
        """Yield the number of each epoch that is left after this number of steps.

        The first one leaves out the batches that have been used. Without a sampler of the link's that is not
        possible: the epoch begins anew.
        """
        sampler = self._loader.sampler
        first, used = divmod(steps, self._steps)
        for epoch in range(first, self._count):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            if epoch == first and isinstance(sampler, NodeSampler) and self._loader.batch_size:
                sampler.left_out = used * self._batches * self._loader.batch_size
            yield epoch


def _listed(schedulers: Any) -> Sequence[Any]:
    """Return one scheduler or several as a list; TrainerError for anything else."""
    listed = (
        [] if schedulers is None else schedulers if isinstance(schedulers, list | tuple) else [schedulers]
    )
    for each in listed:
        if not isinstance(each, LRScheduler) or isinstance(each, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise TrainerError(
                f"a {type(each).__name__} cannot be brought to a number of steps: give epochs schedulers of"
                " torch.optim.lr_scheduler, and anything else to keep()"
            )
    return listed


def _catch_up(scheduler: Any, steps: int) -> None:
    with warnings.catch_warnings():
        # The optimizer's steps were those of an earlier life of the script.
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler\.step\(\)` before")
        while scheduler.last_epoch < steps:
            scheduler.step()
