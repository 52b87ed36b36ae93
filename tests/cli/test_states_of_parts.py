"""A node that was started with other parts before says so, since its checkpoints would seem to be gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.cli.node import check_state
from p2psgd.ipc.part import COUNT_NAME
from p2psgd.storage.files import FOLDER


def had_parts(state: Path, count: int, *, trained: int) -> Path:
    """A state in parts, of which the first ones have trained."""
    for index in range(count):
        (state / f"part-{index}").mkdir(parents=True)
    for index in range(trained):
        (state / f"part-{index}" / FOLDER).mkdir()
    (state / COUNT_NAME).write_text(f"{count}\n")
    return state


@pytest.mark.parametrize("trained", [1, 2])
def test_the_same_number_goes_on_though_a_part_begins_anew(tmp_path: Path, trained: int) -> None:
    state = had_parts(tmp_path, 2, trained=trained)
    check_state(state, 2)
    for parts in (1, 3):
        with pytest.raises(UsageError, match=r"a node of 2 parts: give --parts 2 to go on with it"):
            check_state(state, parts)
    with pytest.raises(UsageError, match=r"a node of 2 parts: give --parts 2"):
        check_state(state, None)


def test_a_state_that_nothing_was_trained_in_takes_any_number(tmp_path: Path) -> None:
    state = had_parts(tmp_path, 2, trained=0)
    check_state(state, 3)
    check_state(state, None)


def test_the_state_of_a_whole_model_takes_no_parts(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    check_state(tmp_path, None)
    with pytest.raises(UsageError, match=r"a node without parts: leave --parts out"):
        check_state(tmp_path, 2)


def test_a_state_without_the_number_has_as_many_parts_as_folders(tmp_path: Path) -> None:
    state = had_parts(tmp_path, 2, trained=1)
    (state / COUNT_NAME).unlink()
    check_state(state, 2)
    with pytest.raises(UsageError, match=r"give --parts 2"):
        check_state(state, 4)


def test_a_path_that_cannot_be_had_is_left_to_those_who_use_it(tmp_path: Path) -> None:
    check_state(tmp_path / ("a" * 300), None)
