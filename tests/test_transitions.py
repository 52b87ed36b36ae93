"""Life-cycles change along their table, and in no other way."""

from __future__ import annotations

import enum
from typing import Final

import pytest

from p2psgd.base.transitions import IllegalTransitionError, Lifecycle, Transitions


class Door(enum.Enum):
    """The states of a door."""

    OPEN = enum.auto()
    CLOSED = enum.auto()
    WALLED_UP = enum.auto()


DOOR: Final = Transitions(
    "door",
    Door.OPEN,
    {
        Door.OPEN: {Door.CLOSED: "pushed"},
        Door.CLOSED: {Door.OPEN: "pulled", Door.WALLED_UP: "bricks came"},
        Door.WALLED_UP: {},
    },
)


def test_it_begins_in_the_first_state_and_goes_where_the_table_leads() -> None:
    door = Lifecycle(DOOR)
    assert door.state is Door.OPEN
    door.move(Door.CLOSED)
    door.move(Door.WALLED_UP)
    assert door.state.name == "WALLED_UP"


@pytest.mark.parametrize("to", [Door.OPEN, Door.WALLED_UP])
def test_a_move_that_the_table_lacks_is_an_error_of_ours_and_changes_nothing(to: Door) -> None:
    door = Lifecycle(DOOR)
    with pytest.raises(IllegalTransitionError, match=f"the door cannot go from OPEN to {to.name}"):
        door.move(to)
    assert door.state is Door.OPEN


def test_a_table_knows_every_state() -> None:
    with pytest.raises(AssertionError, match="lacks WALLED_UP"):
        Transitions("door", Door.OPEN, {Door.OPEN: {Door.CLOSED: "pushed"}, Door.CLOSED: {}})


def test_every_state_can_be_reached() -> None:
    with pytest.raises(AssertionError, match="leads to WALLED_UP"):
        Transitions(
            "door",
            Door.OPEN,
            {Door.OPEN: {Door.CLOSED: "pushed"}, Door.CLOSED: {}, Door.WALLED_UP: {}},
        )
