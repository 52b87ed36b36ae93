"""The choice of who trains what in a group of ranks; the rest is tested by real groups (test_groups.py)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.part import Part
from tests.ipc.daemons import Daemon
from tests.torch.needed import p2psgd_torch, torch

pytestmark = pytest.mark.long

fully_shard = importlib.import_module("torch.distributed.fsdp").fully_shard
group = importlib.import_module("p2psgd.torch.group")
checkpoint = importlib.import_module("p2psgd.torch.checkpoint")
check_names, choose_owners = group.check_names, group.choose_owners
Key = tuple[str, tuple[tuple[int, int], ...], str, int]


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of one rank, this process."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def key(name: str, begin: int = 0, end: int = 4, *, alone: int = 0) -> Key:
    return name, ((begin, end),), "torch.float32", alone


def test_a_block_that_one_rank_holds_is_trained_there() -> None:
    tables = [{key("a", 0, 2): 2}, {key("a", 2, 4): 2}]
    assert choose_owners(tables) == {key("a", 0, 2): ((0,), 0), key("a", 2, 4): ((1,), 1)}


def test_what_several_hold_is_trained_by_the_one_that_has_least() -> None:
    shared = {key("norm"): 4, key("bias"): 4}
    tables = [{key("a", 0, 6): 6, **shared}, {key("a", 6, 8): 2, **shared}]
    owners = choose_owners(tables)
    assert owners[key("bias")] == ((0, 1), 1)
    assert owners[key("norm")] == ((0, 1), 0), "both have six by then"


def test_all_ranks_choose_alike_whatever_the_order_of_their_tables() -> None:
    one = {key("x"): 4, key("y"): 4, key("z"): 4}
    assert choose_owners([one, one]) == choose_owners([dict(reversed(one.items())), one])


def test_stages_whose_tensors_have_the_same_names_share_nothing() -> None:
    tables = [{key("0.weight", alone=1): 4}, {key("0.weight", alone=2): 4}]
    assert [owner for _, owner in choose_owners(tables).values()] == [0, 1]


@pytest.mark.usefixtures("process_group")
def test_a_closure_takes_no_model_that_is_cut() -> None:
    model = torch.nn.Linear(3, 2)
    fully_shard(model)
    with pytest.raises(TrainerError, match="'weight' is cut over a group of ranks"):
        p2psgd_torch.closure(model, lambda *_: None, torch.zeros(4, 3), alone=True)


@pytest.mark.usefixtures("process_group")
def test_a_part_that_is_not_this_rank_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainerError, match=r"part=\(1, 2\) is refused: this is rank 0 of 1") as refused:
        p2psgd_torch.attach(model, optimizer, part=(1, 2))
    assert refused.value.__suppress_context__, "a node takes the first sentence that it reads"
    with pytest.raises(TrainerError, match=r"part=1 is refused: this is rank 0 of 1"):
        p2psgd_torch.attach(model, optimizer, part=1)


def test_ranks_that_give_attach_other_options_are_refused_by_one_sentence() -> None:
    """Else one sends each step and another every third, or one waits for a round that is none elsewhere."""
    ours, theirs = {"local_steps": None, "mode": None}, {"local_steps": 3, "mode": None}
    rank = SimpleNamespace(gather=lambda mine: [mine, {name: repr(value) for name, value in theirs.items()}])
    group.Group.check_same(rank, theirs)
    words = r"rank 1 of the group gives attach local_steps=3, and rank 0 local_steps=None: all ranks"
    with pytest.raises(TrainerError, match=words):
        group.Group.check_same(rank, ours)


class OtherRank:
    """The other rank of a group of two, as it stands in for collectives: what it gives, and knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stopping, self.others, self.heard = False, 0, True
        monkeypatch.setattr(torch.distributed, "all_reduce", self._reduce)
        self.group = group.Group(Part(0, 2), "halves", [], data=(0, 1), shared=[], control=None)
        self.group.gather = lambda mine: [mine, (self.heard, self.stopping, self.others)]

    def _reduce(self, flags: Any, *_: object, **__: object) -> Any:
        flags.copy_(torch.maximum(flags, torch.tensor([int(self.stopping), self.others])))
        return SimpleNamespace(wait=lambda: None)


def test_run_steps_are_what_any_rank_knows_and_waiting_ends_well_if_it_does_everywhere(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loop that ends at a number of them ends on some ranks, and the others wait in collectives."""
    other = OtherRank(monkeypatch)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        link._group = other.group
        other.others = 7
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert link.run_steps == 1 + 7
        other.others = 9
        assert link.run_steps == 1 + 7, "the same until all make the next step"
        assert link.wait_for_peers()
        assert link.run_steps == 1 + 9
        other.heard = False
        assert not link.wait_for_peers()
        link._group = None


def test_a_part_without_a_process_group_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainerError, match=r"call torch\.distributed\.init_process_group before"):
        p2psgd_torch.attach(model, optimizer, part=(0, 2))


def test_a_name_that_may_stand_for_other_tensors_is_refused_and_no_other() -> None:
    table = {key("0.weight"): 4}
    stages = [[(0, 1)], [(0, 1)], [(2, 3)], [(2, 3)]]
    with pytest.raises(TrainerError, match=r"ranks 0 and 2 have a parameter '0.weight' each"):
        check_names([table] * 4, stages)
    check_names([{key(f"{rank // 2}.weight"): 4} for rank in range(4)], stages)
    rows_and_columns = [[(0, 1), (0, 2)], [(0, 1), (1, 3)], [(2, 3), (0, 2)], [(2, 3), (1, 3)]]
    check_names([table] * 4, rows_and_columns)
    check_names([{key("0.weight", alone=1 + rank): 4} for rank in range(4)], [[]] * 4)


@pytest.mark.usefixtures("process_group")
def test_a_buffer_that_is_cut_is_kept_as_the_block_of_this_rank_and_comes_back() -> None:
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (1,))
    tensor = importlib.import_module("torch.distributed.tensor")
    model = torch.nn.Linear(3, 2)
    model.register_buffer("steps", tensor.distribute_tensor(torch.arange(4.0), mesh, [tensor.Shard(0)]))
    rounded = torch.arange(4.0).bfloat16()
    model.register_buffer("rounded", tensor.distribute_tensor(rounded, mesh, [tensor.Replicate()]))
    kept = checkpoint._packed_buffers(model)
    assert kept["buffer:steps"].tolist() == [0.0, 1.0, 2.0, 3.0]
    kept = {name: each.copy() if name.startswith("buffer:") else bytes(each) for name, each in kept.items()}
    with torch.no_grad():
        model.steps.zero_()
        model.rounded.zero_()
    checkpoint._copy_buffers(model, checkpoint._unpacked_buffers(kept))
    assert model.steps.full_tensor().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.equal(model.rounded.full_tensor(), rounded)


@pytest.mark.usefixtures("process_group")
def test_names_that_only_other_ranks_hold_are_left_out_and_unknown_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other: Any = ({key("head.weight", alone=2): 4}, [])
    monkeypatch.setattr(group, "_gather", lambda mine, _: [mine] if mine is None else [mine, other])
    found = group.find_group(torch.nn.Linear(3, 2), (0, 1))
    assert found.rename(["head.weight", "weight", "haed.weight"]) == ["weight", "haed.weight"]
