"""Go through epochs of a node's part of the data, and go on in the middle of one after a restart.

A script's place is its count of steps. The daemon's count is never behind, but it lacks steps that were lost
before they were sent, and the script's state is up to a minute old. So the state says where the script was
when it was kept, and the daemon's count how far it has come since then. A place never goes back: the steps
that were lost are not made again, since schedulers have counted them.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, DistributedSampler

from p2psgd.base.errors import TrainerError


class NodeSampler(DistributedSampler):  # type: ignore[misc]
    """PyTorch's sampler for one node's part of a dataset.

    Attributes:
        left_out: The samples at the begin of this epoch that the node used before it was started again.
        batch: The samples of a batch; an epoch that ends early ends after a whole one.
        stopping: Says whether the epoch ends early.
    """

    left_out = 0
    batch = 1
    stopping: Callable[[], bool] = staticmethod(lambda: False)

    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(list(super().__iter__())[self.left_out :]):
            if place % self.batch == 0 and self.stopping():
                return
            yield index

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, whole."""
        super().set_epoch(epoch)
        self.left_out = 0


@dataclass(slots=True)
class Place:
    """Where a script is: `lost` steps more than the daemon has counted, in epoch `epoch`, which began at its
    step `begun`. `length`: the steps of a whole epoch, as the last one had them; 0: none has ended.

    `steps`: the script's count, when the place was kept.
    """

    steps: int = 0
    lost: int = 0
    epoch: int = 0
    begun: int = 0
    length: int = 0

    def packed(self, steps: int) -> str:
        """Return it as text, for a script that has made this number of the daemon's steps."""
        return json.dumps(asdict(self) | {"steps": steps + self.lost})

    @classmethod
    def restored(cls, text: str, steps: int) -> Self:
        """Return the place of a script that goes on after `steps` of the daemon's; ValueError if `text` is
        none.
        """
        fields = json.loads(text)
        numbers = fields.values() if isinstance(fields, dict) else ()
        if not numbers or any(type(each) is not int or each < 0 for each in numbers):
            raise ValueError("its place in the data is not made of counts")
        try:
            place = cls(**fields)
        except TypeError:
            raise ValueError("its place in the data has other names") from None
        place.lost = max(place.lost, place.steps - steps)
        return place


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
        if not isinstance(loader, DataLoader) or not hasattr(loader.sampler, "__len__"):
            raise TrainerError(
                "epochs takes the torch.utils.data.DataLoader that the loop goes through, of a dataset with a"
                f" length; it was given a {type(loader).__name__}"
            )
        self.step_schedulers, self.epoch_schedulers = _listed(step_scheduler), _listed(epoch_scheduler)
        self.loader = loader
        self.count, self._accumulate = count, accumulate

    @property
    def steps(self) -> int:
        """The steps of all epochs."""
        return self.count * math.ceil(len(self.loader) / self._accumulate)

    def mismatch(self) -> str:
        """Return in one sentence that a scheduler counts other steps than there are; empty if none does."""
        for scheduler in self.step_schedulers:
            total = getattr(scheduler, "total_steps", self.steps)  # of OneCycleLR
            if total != self.steps:
                return (
                    f"the {type(scheduler).__name__} is made for {total:,} steps, and this node makes"
                    f" {self.steps:,}: make it after the loader, which has this node's part of the data, with"
                    " total_steps = epochs * len(loader)"
                )
        return ""

    @property
    def samples_per_step(self) -> int:
        """The samples of a step; 0 if the loader does not say how many are in a batch."""
        return (self.loader.batch_size or 0) * self._accumulate

    def go_to(self, place: Place, steps: int, *, kept: bool) -> None:
        """Bring place and schedulers to where they belong after `steps` of the script; `kept`: the schedulers
        have the state of `place.steps` back, else they are new.
        """
        # Of an epoch that does not divide, more steps than it may have: batches are rather taken twice than
        # not at all.
        length = place.length or math.ceil(len(self.loader) / self._accumulate)
        passed = (steps - place.begun) // length
        place.begun += passed * length
        place.epoch += passed
        for scheduler in self.step_schedulers:
            step_to(scheduler, scheduler.last_epoch + steps - place.steps if kept else steps)
        for scheduler in self.epoch_schedulers:
            step_to(scheduler, scheduler.last_epoch + passed if kept else place.epoch)

    def run(self, place: Place, steps: Callable[[], int], stopping: Callable[[], bool]) -> Iterator[int]:
        """Yield the number of each epoch that is left, until `stopping`; `steps` counts those of the script.

        The first one leaves out the batches that were used. Without a sampler of the link's that is not
        possible: the epoch begins anew.
        """
        sampler = self.loader.sampler
        ours = isinstance(sampler, NodeSampler) and bool(self.loader.batch_size)
        used = steps() - place.begun
        if ours:
            sampler.batch, sampler.stopping = self.loader.batch_size, stopping
        while place.epoch < self.count and not stopping():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(place.epoch)
            if ours:
                sampler.left_out = used * self._accumulate * self.loader.batch_size
            used = 0
            before = [(each, each.state_dict(), _options(each)) for each in self.epoch_schedulers]
            yield place.epoch
            if stopping():  # the epoch was cut short: its end is still to come
                for scheduler, state, options in before:
                    scheduler.load_state_dict(state)
                    for group, values in zip(scheduler.optimizer.param_groups, options, strict=True):
                        group.update(values)
                return
            place.length = steps() - place.begun or place.length
            place.epoch, place.begun = place.epoch + 1, steps()


def _options(scheduler: Any) -> list[dict[str, Any]]:
    """Return all that a scheduler may change in its optimizer."""
    groups = scheduler.optimizer.param_groups
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


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


def step_to(scheduler: Any, steps: int) -> None:
    """Step a scheduler until it has made that number of steps."""
    with warnings.catch_warnings():
        # The optimizer's steps were those of an earlier life of the script.
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler\.step\(\)` before")
        while scheduler.last_epoch < steps:
            scheduler.step()
