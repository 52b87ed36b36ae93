"""The choice of who trains what in a group of ranks; the rest is tested by real groups (test_groups.py)."""

from __future__ import annotations

import pytest

from p2psgd.torch.group import Key, choose_owners
from tests.torch.needed import torch

pytestmark = pytest.mark.long
assert torch is not None


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
