"""Options of a command from a TOML file and the environment.

All of it follows from the command's own signature, by Click: an option comes from the command line, else
from $P2PSGD_<OPTION> (auto_envvar_prefix), else from the file of --config (default_map), else from its
default. `--config` is eager, so that the map is there before any other option is looked up. The file is a
node's; another command reads what it has an option for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, cast, get_args, get_type_hints

import typer

from p2psgd.base.environment import PREFIX
from p2psgd.base.errors import ExitCode, UsageError, words_of
from p2psgd.cli.commands import Command

# ----------------------------------------------------------------------------
# A TOML file of options: flat, `log_budget = 512` for `--log-budget 512`. Only the kind of a value is checked
# here, since Click would take 3.5 or "3" for 3. A path is relative to the file.

FILE_BYTES_MAX: Final = 64 * 1024
_KINDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number, without quotes",
    float: "a number, without quotes",
}
_SCHEME: Final = re.compile(r"[a-z][a-z0-9_-]*:")  # of a source of peers; any other text is a path


class PeersText(str):
    """The words of --peers: the path of a file, or a scheme and its argument (net/peer_sources)."""

    __slots__ = ()


def read_file(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options in the file, each of the type that `kinds` has for its name.

    Raises UsageError that names the file, and the key where one is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise _refusal(f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a file of options?")
        found = tomllib.loads(content.decode())
    except OSError as error:
        raise _refusal(f"cannot read the configuration {path}: {words_of(error)}") from None
    except (ValueError, RecursionError) as error:  # of tomllib, of the decoder, and of too long a number
        raise _refusal(f"{path} is not TOML: {str(error)[:200]}") from None
    for name, value in found.items():
        if name not in kinds:
            tables = "; options stand there without [tables]" if isinstance(value, dict) else ""
            known = ", ".join(sorted(kinds))
            raise _refusal(f"in {path}, there is no option {name!r:.80}, known are {known}{tables}")
        if takes := _what_it_takes(value, kinds[name]):
            raise _refusal(f"in {path}, {name}: it takes {takes}")
        if kinds[name] is Path or (kinds[name] is PeersText and not _SCHEME.match(value)):
            found[name] = str(path.parent / os.path.expanduser(value))
    return found


def _what_it_takes(value: object, kind: object) -> str:
    """Return what an option of this type takes; empty if the value is that."""
    if kind in (int, float) and type(value) is int:
        return "" if value.bit_length() <= 63 else "no number of more than 63 bits"
    if kind in _KINDS:
        return "" if type(value) is kind else _KINDS[kind]
    return "" if isinstance(value, str) and "\0" not in value else "text, in quotes"


def _refusal(words: str) -> UsageError:
    return UsageError(words, ExitCode.CONFIGURATION)


# ----------------------------------------------------------------------------
# P2PSGD_<OPTION> in the environment.

FROM_ENVIRONMENT: Final = {"auto_envvar_prefix": PREFIX}


def variable_of(option: str) -> str:
    """Return the variable of an option: P2PSGD_LOG_BUDGET for log_budget."""
    return f"{PREFIX}_{option.upper()}"


def option_variables(context: typer.Context) -> set[str]:
    """Return the variables of all commands that read any."""
    commands = cast(Any, context.find_root().command).commands.values()
    return {
        variable_of(parameter.name)
        for command in commands
        if isinstance(command, ConfiguredCommand)
        for parameter in command.params
        if parameter.name is not None and getattr(parameter, "allow_from_autoenv", False)
    }


# ----------------------------------------------------------------------------
# The command, and where each of its values came from.

# What Typer raises for a command line it does not understand; it exports only this subclass of it.
CommandLineError = cast(type[Exception], typer.BadParameter.__base__)

ABOUT_ITSELF: Final = frozenset({"config", "help"})  # options that a file cannot hold
# How Typer ends its sentences about values, and what people read instead.
_PLAIN: Final = {
    r": Value error, ": ": ",
    r": Input should be a valid number, .*$": ": it takes a number",
    r": Input should be a valid integer, .*$": ": it takes a whole number",
    r": Input should be a valid boolean, .*$": ": it takes true or false",
    r": Input should be greater than or equal to (\S+)$": r": it takes \1 or more",
    r": Input should be less than or equal to (\S+)$": r": it takes \1 or less",
}
_OPTION: Final = re.compile(r"^Invalid value for '--[a-z-]+': (?=it takes )")


class ConfiguredCommand(Command):
    """A command with these options. A refusal names where each value came from, and ends with CONFIGURATION
    if not all of them came from the command line.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            cast(Any, parameter).show_envvar = False  # it would be the same words at each option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _naming_origins(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _naming_origins(ctx):
            return super().invoke(ctx)


def take_file(context: typer.Context, path: Path | None) -> Path | None:
    """Read the file of --config, as its callback."""
    if path is not None and not context.resilient_parsing:
        node = cast(Any, context.find_root().command).commands["node"]
        context.default_map = read_file(path, kinds_of(node.callback))
    return path


def kinds_of(command: Callable[..., None]) -> dict[str, Any]:
    """Return the type of each option of a command that a file may hold."""
    others = ABOUT_ITSELF | {"context", "return"}
    hints = {name: hint for name, hint in get_type_hints(command).items() if name not in others}
    plain = {name: set(get_args(hint)) - {NoneType} or {hint} for name, hint in hints.items()}
    return {name: kind for name, (kind,) in plain.items()}


def origin_of(context: typer.Context, name: str) -> tuple[str, str]:
    """Return whether an option's value came from the "command line", the "environment", the "file" or is the
    "default", and from which variable or file.
    """
    places = {
        "COMMANDLINE": ("command line", ""),
        "ENVIRONMENT": ("environment", variable_of(name)),
        "DEFAULT_MAP": ("file", str(context.params.get("config"))),
    }
    source = context.get_parameter_source(name)
    return places.get("" if source is None else source.name, ("default", ""))


def words_of_click(error: Exception) -> str:
    """Return the sentence of a CommandLineError."""
    words = str(cast(Any, error).format_message()).removesuffix(".")
    for pattern, plain in _PLAIN.items():
        words = re.sub(pattern, plain, words, count=1)
    return words


@contextlib.contextmanager
def _naming_origins(context: typer.Context) -> Iterator[None]:
    """Begin a refusal with the origins of the options that it names, unless they are the command line."""
    try:
        yield
    except (CommandLineError, UsageError) as error:
        words = str(error) if isinstance(error, UsageError) else words_of_click(error)
        names = {option: each.name for each in context.command.params for option in each.opts}
        named = dict.fromkeys(names.get(option) for option in re.findall(r"--[a-z][a-z0-9-]*", words))
        if origins := ", and ".join(filter(None, (_origin_words(context, name) for name in named if name))):
            raise _refusal(f"{origins}: {_OPTION.sub('', words)}") from None
        raise


def _origin_words(context: typer.Context, name: str) -> str:
    kind, place = origin_of(context, name)
    if kind == "environment":
        return f"{place}={os.environ.get(place, ''):.80} in the environment"
    return f"in {place}, {name}" if kind == "file" else ""


# ----------------------------------------------------------------------------
# What is in force for a node, and where each value came from: for `p2psgd config show`.


def collect(context: typer.Context, options: object) -> dict[str, dict[str, Any]]:
    """Return "value", "from" and "place" of each option of the command in `context`; what is not set, and
    the port of an address, is as the command's `options` have made it.
    """
    from p2psgd.net.address import Address

    shown = {}
    for name in (parameter.name for parameter in context.command.params):
        if name is None or name in ABOUT_ITSELF:
            continue
        value = context.params.get(name)
        made = getattr(options, name, None)
        value = made if value is None or isinstance(made, Address) else value
        kind, place = origin_of(context, name)
        plain = value if value is None or isinstance(value, (bool, int, float)) else str(value)
        shown[name] = {"value": plain, "from": kind, "place": place or None}
    return shown


def render(shown: Mapping[str, Mapping[str, Any]]) -> str:
    """Render a line for each option, written as in a TOML file, for people."""
    rows = [
        (name, _toml(each["value"]), "$" * (each["from"] == "environment") + (each["place"] or each["from"]))
        for name, each in shown.items()
    ]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{name:<{wide[0]}}  {value:<{wide[1]}}  {place}" for name, value, place in rows)


def _toml(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
