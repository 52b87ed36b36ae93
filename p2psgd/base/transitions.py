"""Life-cycles as tables: the states of one kind of thing, the moves between them, and what causes each.

A table stands at the head of the file that owns the state, so that a reader sees every state and every way
between two before the code that goes it. A `Lifecycle` holds the state of one thing. It refuses a move that
the table lacks: such a move is a bug of ours, and the process ends as at a failed `assert`. docs/states.md is
drawn from the tables (`python -m tests.core.draw_states`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

StateT = TypeVar("StateT", bound=enum.Enum)


class IllegalTransitionError(Exception):
    """The code asked for a move that the table of its life-cycle lacks: a bug of ours."""


class Transitions(Generic[StateT]):
    """The moves of one kind of life-cycle, as written at the head of the file that owns it."""

    def __init__(self, name: str, first: StateT, moves: Mapping[StateT, Mapping[StateT, str]]) -> None:
        """`name`: of the thing that has the states, for messages and for the drawing. `first`: the state in
        which each begins. `moves`: for every state the states that may follow, each with its cause in a few
        words; none follows a final state.
        """
        missing = [state.name for state in type(first) if state not in moves]
        reached, new = {first}, [first]
        while new:
            new = [state for each in new for state in moves.get(each, {}) if state not in reached]
            reached.update(new)
        lost = [state.name for state in type(first) if state not in reached]
        assert not missing, f"the table of the {name} lacks {', '.join(missing)}"
        assert not lost, f"no move of the {name} leads to {', '.join(lost)}"
        self.name: Final = name
        self.first: Final = first
        self.moves: Final = moves


class Lifecycle(Generic[StateT]):
    """The state of one thing, which changes along its table and in no other way: only `move` sets `state`."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Transitions[StateT]) -> None:
        self._table = table
        self.state: StateT = table.first

    def move(self, to: StateT) -> None:
        """Change the state; IllegalTransitionError if the table has no such move, not even to the same state
        unless it says so.
        """
        if to not in self._table.moves[self.state]:
            raise IllegalTransitionError(
                f"the {self._table.name} cannot go from {self.state.name} to {to.name}"
            )
        self.state = to
