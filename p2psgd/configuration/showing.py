"""What is in force for a node, and where each value came from: for `p2psgd config show`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import typer

from p2psgd.configuration.command import ABOUT_ITSELF, Origin, origin_of


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """One option; `value` is None if it is not set."""

    name: str
    value: bool | int | float | str | list[str] | None
    origin: Origin


def collect(context: typer.Context, options: object) -> list[Shown]:
    """All options of the command in `context`; what is not set as the command's `options` have made it."""
    shown = []
    for parameter in context.command.params:
        name = parameter.name
        if name is None or name in ABOUT_ITSELF:
            continue
        value = context.params.get(name)
        value = getattr(options, name, None) if value is None else value
        shown.append(Shown(name, _plain(value), origin_of(context, name)))
    return shown


def describe(shown: list[Shown]) -> dict[str, Any]:
    """For machines: by name, value and where it came from."""
    return {
        each.name: {"value": each.value, "from": each.origin.kind, "place": each.origin.place or None}
        for each in shown
    }


def render(shown: list[Shown]) -> str:
    """For people: a line each, written as in a TOML file."""
    rows = [(each.name, _toml(each.value), _place(each.origin)) for each in shown]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{name:<{wide[0]}}  {value:<{wide[1]}}  {place}" for name, value, place in rows)


def _place(origin: Origin) -> str:
    match origin.kind:
        case "environment":
            return f"${origin.place}"
        case "preset":
            return f"preset {origin.place}"
        case "file":
            return origin.place
        case _:
            return origin.kind


def _plain(value: object) -> bool | int | float | str | list[str] | None:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


def _toml(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
