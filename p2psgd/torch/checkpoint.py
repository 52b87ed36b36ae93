"""Keep the state of a PyTorch script with its node's checkpoints: the optimizer's state, the model's buffers,
and further objects that the script names. The weights are in the replica.

Buffers are kept by name, and so are the second names of tied parameters, so that `p2psgd export` has all that
`load_state_dict` wants.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from p2psgd.base.errors import TrainerError
from p2psgd.base.formatting import say
from p2psgd.client.link import Link
from p2psgd.ipc.script_state import ALIAS, BUFFER, STATE_BYTES_MAX, VALUES_MAX
from p2psgd.torch.arrays import Named
from p2psgd.torch.epochs import Place, step_to
from p2psgd.torch.group import Group
from p2psgd.torch.shards import is_cut, local_of, wrap
from p2psgd.torch.step_size import Steps

KEPT_BY = "p2psgd.torch, 4"  # whose state it is, and its version
HEADERS_BYTES = 1 << 24  # so much less than a link keeps, for names and the like
SCALERS = ("GradScaler", "ShardedGradScaler")  # of which all ranks of a group need the same scale
OTHER_BUFFERS = "other buffers"  # without an array of their own
BUFFERS_MAX, ALIASES_MAX = VALUES_MAX // 2, VALUES_MAX // 4
NAME_MAX = 190  # with the word before it, less than a kept value's name may have
ARRAY_TYPES = {  # that numpy has too
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}


class Kept:
    """Keeps the state of one trainer; `others` have state_dict() and load_state_dict(), as schedulers do."""

    def __init__(
        self,
        link: Link,
        model: Any,
        optimizers: Sequence[Any],
        steps: Steps,
        group: Group | None = None,
    ) -> None:
        self.script_steps: Callable[[], int] = lambda: link.steps  # and those that are not sent yet
        self._link, self._model, self._optimizers, self._steps = link, model, optimizers, steps
        self._group = group
        self._others: list[Any] = []
        self._unclaimed: list[tuple[str, Any]] = []  # class and state of what an earlier start kept
        self._everywhere: list[Counts] = []  # of the ranks of the group, the one that came furthest first
        self.place = Place()
        self._begun = link.steps
        self._said = False

    def make(self) -> dict[str, Any]:
        """Return the state after the last step, for Link.keep()."""
        state = {
            "by": KEPT_BY,
            "kinds": _listed_kinds(self._optimizers),
            "steps": self._link.steps,
            "rates": np.array(self._steps.rates, np.float64),
            "place": self.place.packed(self.script_steps()),
            "other kinds": ", ".join([*map(_kind, self._others), *(kind for kind, _ in self._unclaimed)]),
            "others": _saved(
                [*(each.state_dict() for each in self._others), *(state for _, state in self._unclaimed)]
            ),
            **({} if self._group is None else {"settings": _saved(_settings(self._optimizers))}),
            **_packed_buffers(self._model),
            **_aliases(self._model),
        }
        optimizers = [each.state_dict() for each in self._optimizers]
        size = sum(part.nbytes for part in state.values() if isinstance(part, memoryview | np.ndarray))
        size += sum(map(_size, optimizers))
        if size <= STATE_BYTES_MAX - HEADERS_BYTES:
            return state | {"optimizers": _saved(optimizers)}
        if not self._said:
            self._said = True
            say(
                f"the optimizer's state and the model's buffers take {size} bytes, more than can be"
                " kept with a checkpoint: after a restart the optimizer begins anew"
            )
        return state

    def restore(self) -> None:
        """Continue from the state that an earlier start kept, if any; TrainerError if it does not fit."""
        if self._group is not None:
            self._agree(self._group)
        kept = self._restored()
        if kept is None:
            return
        same = kept["steps"] == self._link.steps
        self._steps.restore(kept["rates"].tolist() if same else ())
        try:
            self._restore_optimizers(kept)
            _copy_buffers(self._model, _unpacked_buffers(kept))
            self.place = Place.restored(kept["place"], self.script_steps())
            self._unclaimed = list(zip(_split_kinds(kept), _loaded(kept["others"]), strict=True))
        except FITS_NOT as error:
            raise _unfit(error) from None

    def _agree(self, group: Group) -> None:
        """Let all ranks go on from the same place, and note where the schedulers of each were.

        Settings of optimizers and kept objects stay each rank's own: stages of a pipeline may have rates of
        their own. A rank of which nothing is there takes those of the rank that has come furthest, if it has
        made its optimizers alike.
        """
        own = self._link.restored
        if own is not None and own.get("by") != KEPT_BY:
            own = None
        made = _listed_kinds(self._optimizers), repr(_plain(_settings(self._optimizers)))
        ranks = group.gather((None if own is None else (own["place"], _counts(own)), made))
        known = [rank for rank, (its, _) in enumerate(ranks) if its is not None]
        if not known:
            return
        first = max(known, key=lambda rank: Place.restored(ranks[rank][0][0], 0).steps)
        lends = group.part.index == first and len(known) < len(ranks)
        lent = group.gather({name: own[name] for name in LENT} if own is not None and lends else None)[first]
        self._everywhere = [ranks[rank][0][1] for rank in sorted(known, key=lambda rank: rank != first)]
        place = {"place": ranks[first][0][0]}
        if own is None:
            own = self._begin_anew(lent if made == ranks[first][1] else None)
            say(
                f"nothing was kept of this rank's script, which trains part {group.part.index}, though of"
                " others it was: its optimizer, buffers and other kept objects begin anew"
            )
        self._link.restored = {**own, **place}

    def _begin_anew(self, lent: Named | None) -> dict[str, Any]:
        """Return a state of this rank alone, with settings and schedulers of another if any are `lent`."""
        state = {
            "by": KEPT_BY,
            "kinds": _listed_kinds(self._optimizers),
            "steps": -1,
            "rates": np.array([]),
            **_packed_buffers(self._model),
        }
        if lent is None:
            return state | {"other kinds": "", "others": _saved([])}
        others = zip(_split_kinds(lent), _loaded(lent["others"]), strict=True)
        own = [its if _common_value(kind, its) is not None else None for kind, its in others]
        return {**state, **lent, "others": _saved(own)}

    def _restored(self) -> Named | None:
        """Return what an earlier start of this script has kept; None if nothing, or nothing for this one."""
        kept: Named | None = self._link.restored
        if kept is None and self._link.steps:
            say(
                f"nothing of the script was kept yet when it ended after {self._link.steps} steps:"
                " the optimizer, buffers and schedulers begin anew"
            )
        if kept is None or kept.get("by") == KEPT_BY:
            return kept
        say(
            f"what this node has kept is of {kept.get('by', 'another kind of script')!s:.100}, not of"
            f" {KEPT_BY}: the optimizer and what is kept beside it begin anew"
        )
        return None

    def add(self, others: Sequence[Any]) -> bool:
        """Keep these objects as well, from now on, and give each the state that was kept of it; return
        whether each had one.

        TrainerError if one has no state, or the state does not fit.
        """
        check_kept(others)
        begin = len(self._others)
        self._others += others
        claimed, self._unclaimed = self._unclaimed[: len(others)], self._unclaimed[len(others) :]
        try:
            for each, (kind, state) in zip(others, claimed, strict=False):
                if state is None:  # of another rank's alone
                    continue
                _check_kinds(kind, [each])
                each.load_state_dict(state)
            if claimed and self._link.steps == self._begun and self._link.restored is not None:
                # A scheduler that was made since then has set rates back.
                self._restore_optimizers(self._link.restored)
            self._bring_together(begin, others)
        except FITS_NOT as error:
            raise _unfit(error) from None
        return sum(state is not None for _, state in claimed) == len(others)

    def _bring_together(self, begin: int, others: Sequence[Any]) -> None:
        """Bring schedulers to the count of the rank that has come furthest, and scalers to its scale: ranks
        keep their states at other moments. `begin`: the number of objects that were kept before these.
        """
        for number, each in enumerate(others, begin):
            kind = _kind(each)
            places = [its[number] for its in self._everywhere if number < len(its)]
            values = [value for its, value in places if its == kind and value is not None]
            if not values:
                continue
            if kind in SCALERS:
                each.load_state_dict(values[0])
            elif isinstance(each, LRScheduler) and not isinstance(each, ReduceLROnPlateau):
                step_to(each, max(values))

    def _restore_optimizers(self, kept: Named) -> None:
        _check_kinds(kept["kinds"], self._optimizers)
        if "optimizers" in kept:
            for optimizer, state in zip(self._optimizers, _loaded(kept["optimizers"]), strict=True):
                optimizer.load_state_dict(_with_cuts(optimizer, state))
        if "settings" in kept:
            for optimizer, groups in zip(self._optimizers, _loaded(kept["settings"]), strict=True):
                for its, settings in zip(optimizer.param_groups, groups, strict=True):
                    its.update(settings)


def check_kept(others: Sequence[Any]) -> None:
    """Raise TrainerError if one of these objects has no state."""
    for each in others:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise TrainerError(
                f"keep holds a {type(each).__name__}, which has no state_dict() and load_state_dict()"
            )


FITS_NOT = (ValueError, RuntimeError, KeyError, pickle.UnpicklingError)


def _unfit(error: Exception) -> TrainerError:
    first = str(error).partition("\n")[0]
    return TrainerError(
        f"what this node has kept of its script does not fit the script ({first:.200}): give it the"
        " optimizer, buffers and keep of before, or start its node with another --state"
    )


def _check_kinds(kept: str, objects: Sequence[Any]) -> None:
    """Raise ValueError if the state is of other classes: many would take it, and fail later."""
    here = _listed_kinds(objects)
    if kept != here:
        raise ValueError(f"it is of {kept or 'nothing'}, and here are {here}")


def _listed_kinds(objects: Sequence[Any]) -> str:
    return ", ".join(map(_kind, objects))


def _kind(each: Any) -> str:
    return type(each).__name__


def _split_kinds(kept: Named) -> list[str]:
    return [kind for kind in kept["other kinds"].split(", ") if kind]


Counts = list[tuple[str, Any]]  # of kept objects: the class, and what all ranks must have in common of it
LENT = ("other kinds", "others", "settings")  # to a rank of which nothing was kept


def _counts(kept: Named) -> Counts:
    try:
        states = _loaded(kept["others"])
    except FITS_NOT:  # which its own rank refuses in a sentence
        return []
    return [(kind, _common_value(kind, its)) for kind, its in zip(_split_kinds(kept), states, strict=True)]


def _common_value(kind: str, state: Any) -> Any:
    """Return what all ranks must have in common of a kept object: the count of a scheduler, the whole state
    of a scaler, None of anything else.
    """
    if kind in SCALERS or not isinstance(state, Mapping):
        return state if kind in SCALERS else None
    count = state.get("last_epoch")
    return count if type(count) is int else None


def _saved(value: Any) -> memoryview:
    stream = io.BytesIO()
    torch.save(_plain(value), stream)
    return stream.getbuffer()


def _plain(value: Any) -> Any:
    """Return the value with Python's numbers in place of numpy's, which `_loaded` refuses.

    A schedule that is computed by numpy makes a learning rate of them.
    """
    match value:
        case np.generic():
            return value.item()
        case torch.Tensor() if is_cut(value):
            return local_of(value)
        case dict() if type(value) is dict:
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(map(_plain, value))
    return value


def _settings(optimizers: Sequence[Any]) -> list[list[dict[str, Any]]]:
    return [
        [{key: value for key, value in group.items() if key != "params"} for group in each.param_groups]
        for each in optimizers
    ]


def _with_cuts(optimizer: Any, state: Named) -> dict[str, Any]:
    """Return an optimizer's state with DTensors for those parameters that are; the state holds this rank's
    blocks.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    whole = dict(state)
    whole["state"] = {
        number: {
            key: wrap(parameters[number], value.to(parameters[number].device))
            if is_cut(parameters[number])
            and isinstance(value, torch.Tensor)
            and value.shape == local_of(parameters[number]).shape
            and key != "step"
            else value
            for key, value in its.items()
        }
        for number, its in state["state"].items()
    }
    return whole


def _loaded(saved: Any) -> Any:
    return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)


def _packed_buffers(model: Any) -> dict[str, Any]:
    """Return the buffers as values that a node keeps: an array by name of each that has one, and the others
    in one value.
    """
    packed: dict[str, Any] = {}
    others = _buffers(model)
    for name, buffer in list(others.items())[:BUFFERS_MAX]:
        if len(name) <= NAME_MAX and buffer.dtype in ARRAY_TYPES and buffer.layout == torch.strided:
            packed[BUFFER + name] = local_of(others.pop(name)).cpu().numpy()
    return packed | {OTHER_BUFFERS: _saved(others)}


def _unpacked_buffers(kept: Named) -> dict[str, Any]:
    arrays = {name.removeprefix(BUFFER): each for name, each in kept.items() if name.startswith(BUFFER)}
    others: dict[str, Any] = _loaded(kept[OTHER_BUFFERS])
    return others | {name: torch.as_tensor(each) for name, each in arrays.items()}


def _aliases(model: Any) -> dict[str, str]:
    """Return the second names of tied parameters and of buffers, each with the first one."""
    first: dict[int, str] = {}
    found = {}
    parts = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    for name, tensor in itertools.chain(*parts):
        known = first.setdefault(id(tensor), name)
        if known != name and len(name) <= NAME_MAX:
            found[ALIAS + name] = known
    return dict(list(found.items())[:ALIASES_MAX])


def _copy_buffers(model: Any, kept: Named) -> None:
    buffers = _buffers(model)
    if buffers.keys() != kept.keys():
        raise ValueError(f"its buffers are {', '.join(buffers)} and were {', '.join(sorted(kept))}")
    for name, buffer in buffers.items():
        local = local_of(buffer)
        if local.shape != kept[name].shape:
            raise ValueError(f"buffer {name} was {tuple(kept[name].shape)}, and is {tuple(local.shape)}")
        local.copy_(kept[name])


def _buffers(model: Any) -> dict[str, Any]:
    """Return the buffers that model.state_dict() has too; others are caches, of any shape by now."""
    passing = {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in passing}


def _size(optimizer: Named) -> int:
    """Return the bytes of the tensors in an optimizer's state."""
    return sum(
        local_of(value).nbytes
        for state in optimizer["state"].values()
        if isinstance(state, Mapping)
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
