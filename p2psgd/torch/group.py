"""The ranks of a group over which PyTorch has cut one model: which part each holds, and what all agree on.

All ranks make their steps together, by the collectives of their script. Each trains its part in a run of its
own. So what all must do alike is agreed on here: where a script goes on after a restart, and when it ends.
Tensors that several ranks hold whole, such as norms under tensor parallelism, are trained by one of them,
their owner, and the others get them from it after each step: updates come to each part at other moments.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch

from p2psgd.base.errors import ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.client.link import Link
from p2psgd.ipc.part import PARTS_MAX, STAGE, Block, Part, name_block
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX
from p2psgd.torch.shards import block_of, complete_gradient, describe_placements, is_cut, local_of
from p2psgd.wire.codec import MAGNITUDE_MAX

WAIT: Final = timedelta(days=1)  # of one rank for another: while a node waits for others, nothing is wrong
LOST_STEPS_MAX: Final = 1_000_000  # that a part may lack, after its daemon has lost its state
ROUNDS_MAX: Final = 64  # in which parts come to the same round


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A trained parameter, and which block of it this rank holds; `ranks`: those that hold the same block,
    `owner` the one of them that trains it.
    """

    name: str
    parameter: Any
    block: Block
    ranks: tuple[int, ...]
    owner: int

    @property
    def block_name(self) -> str:
        """The name of the block in the run of its part."""
        return name_block(self.name, self.block, tuple(self.parameter.shape))


class Group:
    """The ranks of a group, as one of them sees them.

    Attributes:
        part: The part that this rank holds.
        cut: How the model is cut, in a few words, the same on all ranks.
        held: All trained parameters of which this rank holds a block.
        data: Which part of the group's data this rank takes, and of how many.
        steps: The steps that all ranks have made when they attached.
        stopping: True once the daemon of any rank asks its script to end.
        others: What any rank knows most of: the steps of the other nodes, or in rounds how many nodes there
            are. Updates come to each part at other moments.
    """

    def __init__(
        self,
        part: Part,
        cut: str,
        held: Sequence[Held],
        *,
        data: tuple[int, int],
        shared: Sequence[SharedTensors],
        control: Any,
        names: Collection[str] = (),
    ) -> None:
        """Take what `find_group` has found; `control`: a process group of its own, on the host. `names`: of
        all parameters that any rank trains.
        """
        self.part, self.cut, self.held, self.data = part, cut, held, data
        self.steps = self.others = 0
        self.stopping = False
        self._shared, self._control, self._names = shared, control, names
        self._flags = torch.zeros(2, dtype=torch.int64)  # stopping, others
        self._asked: Any = None  # what is left of `ask_to_end`

    @property
    def own(self) -> dict[str, Any]:
        """The parameters that this rank trains, by the names of their blocks."""
        mine = self.part.index
        return {each.block_name: each.parameter for each in self.held if each.owner == mine}

    def rename(self, names: Sequence[str]) -> list[str]:
        """Return the names in the run of this part for these names of the model; those of others are left
        out.
        """
        own = self.part.index
        known = {each.name: each.block_name for each in self.held if each.owner == own}
        return [known.get(name, name) for name in names if name in known or name not in self._names]

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all ranks give, in their order."""
        return _gather(value, self._control)

    def check_same(self, options: Mapping[str, Any]) -> None:
        """Raise TrainerError on all ranks unless all of them give these options the same values; all have the
        same names in it.
        """
        everywhere = self.gather({name: repr(value) for name, value in options.items()})
        first = everywhere[0]
        for rank, given in enumerate(everywhere):
            for name in first:
                if given.get(name) != first[name]:
                    raise TrainerError(
                        f"rank {rank} of the group gives attach {name}={given.get(name)}, and rank 0"
                        f" {name}={first[name]}: all ranks of a group give the same"
                    )

    def together(self) -> AbstractContextManager[None]:
        """Raise on all ranks what one of them is refused for inside; see `together`."""
        return together(self._control)

    def complete_gradients(self) -> None:
        """Add up the gradients that are partial sums, also of what another rank trains: all ranks call it
        before a step.
        """
        for each in self.held:
            complete_gradient(each.parameter)

    def share(self) -> None:
        """Give each tensor that several ranks hold whole the numbers of its owner, on all of them."""
        for each in self._shared:
            each.share()

    def ask_to_end(self, stopping: bool, others: int) -> None:
        """Begin to agree whether the script is to end, and on `others`, which `end_step` completes: all ranks
        call both for each step, and work of their own may lie between.
        """
        self._agree_to_end()  # after a step that an error has interrupted
        self._flags[0], self._flags[1] = int(stopping), others
        reduce = torch.distributed.all_reduce
        self._asked = reduce(self._flags, torch.distributed.ReduceOp.MAX, group=self._control, async_op=True)

    def end_step(self) -> None:
        """Take in what was asked, and share what is shared."""
        self._agree_to_end()
        self.share()

    def _agree_to_end(self) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked.wait()
            self.stopping, self.others = bool(self._flags[0]), int(self._flags[1])

    def agree_on_waiting(self, heard: bool, stopping: bool, others: int) -> bool:
        """Return whether all ranks have heard all peers; waits for a rank whose peers are late."""
        everywhere = self.gather((heard, stopping, others))
        self.stopping = any(each[1] for each in everywhere)
        self.others = max(each[2] for each in everywhere)
        return all(each[0] for each in everywhere)

    # -- after attaching

    def come_together(
        self, link: Link, zeros: Any, rate: float | None, count_others: Callable[[Link], int]
    ) -> None:
        """Bring all ranks to the same number of steps, or in rounds to the same round.

        A rank that was killed, or a daemon, may lack steps that the others have counted: those are counted
        now, without a change. `zeros` (P,) changes nothing; `rate`: if the run takes one. `count_others`
        returns `others` as this rank knows it.
        """
        if link.mode.rounds:
            self._come_to_one_round(link)
            self.steps = max(self.gather(link.steps))
        else:
            everywhere = self.gather(link.steps)
            self.steps, least = max(everywhere), min(everywhere)
            if self.steps - least > LOST_STEPS_MAX:  # on all ranks
                raise TrainerError(
                    f"the daemon of part {everywhere.index(least)} lacks {self.steps - least} steps that"
                    f" another part has counted, more than {LOST_STEPS_MAX}: delete the states of all parts,"
                    " and start the node anew"
                )
            while (missing := self.steps - link.steps) > 0:
                count = min(missing, SEND_STEPS_MAX)
                link.send(zeros, None if link.mode.ternary else MAGNITUDE_MAX, steps=count, rate=rate)
        self.agree_on_waiting(True, link.stopping, count_others(link))

    def _come_to_one_round(self, link: Link) -> None:
        for _ in range(ROUNDS_MAX):
            link.receive()
            rounds = self.gather((link.round, link.stopping))
            latest = max(number for number, _ in rounds)
            if all(number == latest for number, _ in rounds) or any(stopping for _, stopping in rounds):
                return
            if link.round < latest:
                if link.mode.dense:
                    link._begin_dense(None)
                else:
                    link.skip()
        raise TrainerError("the parts of this node have not come to the same round: start its trainer again")


class SharedTensors:
    """Some tensors of one type that the same ranks hold whole, and that the rank `owner` trains."""

    def __init__(self, parameters: Sequence[Any], owner: int, process_group: Any) -> None:
        self._parameters, self._owner, self._group = parameters, owner, process_group

    def share(self) -> None:
        """Give all ranks the numbers of the owner."""
        parts = [local_of(each) for each in self._parameters]
        flat = torch.cat([part.reshape(-1) for part in parts])
        torch.distributed.broadcast(flat, self._owner, group=self._group)
        if torch.distributed.get_rank() == self._owner:
            return
        begin = 0
        for part in parts:
            part.copy_(flat[begin : begin + part.numel()].view(part.shape))
            begin += part.numel()


@contextmanager
def together(control: Any) -> Iterator[None]:
    """Raise on all ranks of the process group `control` what the first of them is refused for inside; the
    others would else wait for it in their collectives.

    It is one sentence without its cause: a node sees the same end each time, whichever rank prints first.
    """
    refused: tuple[str, ExitCode | None] | None = None
    try:
        yield
    except P2psgdError as error:
        refused = str(error), error.exit_code if isinstance(error, UsageError) else None
    for rank, given in enumerate(_gather(refused, control)):
        if given is not None:
            words, code = f"rank {rank} of the group: {given[0]}", given[1]
            raise (TrainerError(words) if code is None else UsageError(words, code)) from None


# ----------------------------------------------------------------------------
# How a model is cut, found in the model itself.


Key = tuple[str, Block, str, int]  # name, block, type and, of a tensor of one rank alone, 1 + that rank


def find_group(model: Any, part: tuple[int, int] | None) -> Group | None:
    """Return the group over whose ranks the model is cut; None if the model is whole, and `part` not given.

    All ranks call it together. TrainerError if the model is cut in a way that p2psgd does not train.
    """
    for module in _fsdp_modules(model):
        module.reshard()  # after a forward pass whole parameters may be in the place of the shards
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    cut = [each for each in trained.values() if is_cut(each)]
    if part is None and not cut:
        return None
    mine = _own_part()
    control = torch.distributed.new_group(backend="gloo", timeout=WAIT)
    with together(control):
        _check_part(part, mine)
        table = _blocks_of(trained, 0 if cut else 1 + mine.index)  # a stage has tensors of its own
    sizes = {key: local_of(parameter).numel() for key, (_, parameter) in table.items()}
    meshes = sorted({tuple(each.device_mesh.mesh.reshape(-1).tolist()) for each in cut})
    tables, everywhere = zip(*_gather((sizes, meshes), control), strict=True)
    check_names(tables, everywhere)
    owners = choose_owners(tables)
    held = [Held(name, each, key[1], *owners[key]) for key, (name, each) in table.items()]
    shared = []
    for ranks, owner, kind in sorted({(*owners[key], key[2]) for key in owners if len(owners[key][0]) > 1}):
        whole = len(ranks) == mine.count
        # Made on all ranks, in one order, and used by those that are in it.
        process_group = None if whole else torch.distributed.new_group(list(ranks))
        its = [table[key][1] for key in sorted(table) if (*owners[key], key[2]) == (ranks, owner, kind)]
        if mine.index in ranks:
            shared.append(SharedTensors(its, owner, process_group))
    return Group(
        mine,
        _describe_cut(trained),
        held,
        data=_data_part(model, cut),
        shared=shared,
        control=control,
        names={key[0] for each in tables for key in each},
    )


def _own_part() -> Part:
    """Return the part of this rank; TrainerError if there is no process group, or it is too large."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise TrainerError(
            "a model that is cut over ranks needs their process group: call"
            " torch.distributed.init_process_group before, and start the script by torchrun"
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if size > PARTS_MAX:
        raise TrainerError(f"the process group has {size} ranks, and a model {PARTS_MAX} parts at most")
    return Part(rank, size)


def _check_part(part: tuple[int, int] | None, mine: Part) -> None:
    rank, size = mine.index, mine.count
    if part is not None and (not isinstance(part, tuple | list) or tuple(part) != (rank, size)):
        raise TrainerError(
            f"part={part!r:.40} is refused: this is rank {rank} of {size}, so give part=({rank}, {size})"
        )


def _blocks_of(trained: Mapping[str, Any], alone: int) -> dict[Key, tuple[str, Any]]:
    """Return the blocks that this rank holds of these parameters, with their names and parameters."""
    table: dict[Key, tuple[str, Any]] = {}
    for name, parameter in trained.items():
        if torch.nn.parameter.is_lazy(parameter):
            raise TrainerError(
                f"parameter {name!r} has no shape yet: run the model once before p2psgd.torch.attach"
            )
        block = block_of(name, parameter) if is_cut(parameter) else _whole(parameter)
        if all(end > begin for begin, end in block):
            table[name, block, str(parameter.dtype), alone] = name, parameter
    return table


def _whole(parameter: Any) -> Block:
    return tuple((0, size) for size in parameter.shape)


def choose_owners(sizes: Sequence[Mapping[Key, int]]) -> dict[Key, tuple[tuple[int, ...], int]]:
    """Return for each block the ranks that hold it, and the one that trains it: the one that trains least."""
    holders: dict[Key, list[int]] = {}
    for rank, table in enumerate(sizes):
        for key in table:
            holders.setdefault(key, []).append(rank)
    load = [sum(size for key, size in table.items() if len(holders[key]) == 1) for table in sizes]
    owners = {}
    for key, ranks in sorted(holders.items(), key=lambda item: (-sizes[item[1][0]][item[0]], item[0])):
        owner = ranks[0] if len(ranks) == 1 else min(ranks, key=lambda rank: (load[rank], rank))
        if len(ranks) > 1:
            load[owner] += sizes[owner][key]
        owners[key] = tuple(ranks), owner
    return owners


def check_names(tables: Sequence[Mapping[Key, int]], meshes: Sequence[Sequence[tuple[int, ...]]]) -> None:
    """Raise TrainerError, the same on all ranks, if a name may stand for other tensors on some of them.

    That is so where stages of a pipeline are cut further, and their layers have numbers from 0 on: no mesh
    leads from the ranks of one to those of another. `meshes` of each rank: the ranks of each.
    """
    stage = list(range(len(meshes)))  # the lowest rank of each rank's stage
    for ranks in {ranks for its in meshes for ranks in its}:
        joined = {stage[rank] for rank in ranks}
        stage = [min(joined) if each in joined else each for each in stage]
    first: dict[str, int] = {}
    for rank, table in enumerate(tables):
        for name, _, _, alone in sorted(table):
            other = rank if alone else first.setdefault(name, rank)
            if stage[other] != stage[rank]:
                raise TrainerError(
                    f"ranks {other} and {rank} have a parameter {name!r:.100} each, and no mesh that joins"
                    " them, so it may be another tensor: let each stage's parameters keep the names that they"
                    " have in the whole model, as in examples/torch/pipeline.py"
                )


def _describe_cut(trained: Mapping[str, Any]) -> str:
    """Return how the parameters are cut: over how many ranks, and how many of them in which way."""
    meshes = {tuple(each.device_mesh.shape) for each in trained.values() if is_cut(each)}
    if not meshes:
        return f"{STAGE} {len(trained)} tensors"
    ways = {name: describe_placements(each) if is_cut(each) else "whole" for name, each in trained.items()}
    exact = ((name, tuple(each.shape), ways[name]) for name, each in trained.items())
    mark = hashlib.sha256(repr([*exact]).encode()).hexdigest()[:6]
    over = " and ".join("x".join(map(str, shape)) for shape in sorted(meshes))
    counts = ", ".join(f"{count} by {way}" for way, count in Counter(ways.values()).most_common())
    return f"cut over {over} ranks: {counts} ({mark})".replace("by whole", "whole")


def _data_part(model: Any, cut: Sequence[Any]) -> tuple[int, int]:
    """Return which part of its group's data this rank takes: FSDP gives each rank other samples, and tensor
    parallelism and pipelines give all the same.
    """
    if not cut or not any(_fsdp_modules(model)):
        return 0, 1
    mesh = max((each.device_mesh for each in cut), key=lambda each: int(each.ndim))
    coordinate = mesh.get_coordinate()
    if all(each.placements[0].is_replicate() for each in cut):  # HSDP
        size = int(mesh.size())
        return int((mesh.mesh.reshape(-1) == torch.distributed.get_rank()).nonzero()[0, 0]), size
    return int(coordinate[0]), int(mesh.size(0))


def _fsdp_modules(model: Any) -> Iterator[Any]:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None and isinstance(model, torch.nn.Module):
        yield from (each for each in model.modules() if isinstance(each, kind))


def _gather(value: Any, control: Any) -> list[Any]:
    values: list[Any] = [None] * torch.distributed.get_world_size(control)
    torch.distributed.all_gather_object(values, value, group=control)
    return values
