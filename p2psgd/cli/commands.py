"""The frame of all commands: help with whole summaries below headings, and no unknown variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from p2psgd.base.environment import check_environment

Function = TypeVar("Function", bound=Callable[..., Any])

HEADING: Final = "Commands"  # of those that name none


class Command(TyperCommand):
    """A command that does not start beside a variable that looks like one of p2psgd's and is not; its --help
    does.
    """

    def invoke(self, ctx: Any) -> Any:
        check_environment(os.environ)
        return super().invoke(ctx)


class CommandGroup(TyperGroup):
    """A group whose help lists commands by heading (`rich_help_panel`); Typer's own cuts each summary at the
    end of the line.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            summary = " ".join((command.help or "").partition("\n\n")[0].split())
            sections.setdefault(command.rich_help_panel or HEADING, []).append((name, summary))
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", summary) for name, summary in rows])


class Commands(typer.Typer):
    """A Typer whose commands are Command, unless they say otherwise, in a CommandGroup."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **settings: Any
    ) -> Callable[[Function], Function]:
        return super().command(name, cls=cls, **settings)
