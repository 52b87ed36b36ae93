"""A command whose options may also come from a node's TOML file, a preset and the environment.

Click resolves each option: command line, then $P2PSGD_<OPTION>, then its default_map, which holds what the
file says over what the preset says, then the default. `--config` and `--preset` are eager, so that the map is
made before any other option is looked up. File and preset are a node's, whichever command reads them: it
takes what it has an option for.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from p2psgd.configuration.environment import PREFIX, variable_of, warn_of_unknown
from p2psgd.configuration.file import ConfigurationFile, read_file
from p2psgd.configuration.presets import PRESETS, Preset
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ops.logs import LogFormat, begin_log, say_warning

# What Typer raises for a command line it does not understand; it exports only this subclass of it.
CommandLineError = cast(type[Exception], typer.BadParameter.__base__)

FROM_ENVIRONMENT: Final = {"auto_envvar_prefix": PREFIX}
ABOUT_ITSELF: Final = frozenset({"config", "help"})  # options that a file cannot hold
# How Typer ends its sentences about values, and how a file's are told.
_PLAIN: Final = {
    r": Value error, ": ": ",
    r": Input should be a valid number, .*$": ": it takes a number",
    r": Input should be a valid integer, .*$": ": it takes a whole number",
    r": Input should be a valid boolean, .*$": ": it takes true or false",
    r": Input should be greater than or equal to (\S+)$": r": it takes \1 or more",
    r": Input should be less than or equal to (\S+)$": r": it takes \1 or less",
}
_OPTION: Final = re.compile(r"^Invalid value for '--[a-z-]+': (?=it takes )")
_META: Final = "p2psgd.configuration"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `kind` is "command line", "environment", "file", "preset" or "default".

    `place` is the variable, file and line, or preset, `words` the same for a sentence.
    """

    kind: str
    place: str = ""
    words: str = ""


@dataclass(slots=True)
class _Given:
    file: ConfigurationFile | None = None
    preset: Preset | None = None


class ConfiguredCommand(TyperCommand):
    """Its refusals name where each value came from, and end with CONFIGURATION if not all of them came from
    the command line. If it has --log-format, all that it says is that log's from its first sentence on.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            cast(Any, parameter).show_envvar = False  # it would be the same words at each option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _naming_origins(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        log_format = ctx.params.get("log_format")
        if log_format is not None and ctx.obj is None:  # `p2psgd config show` logs nothing
            begin_log(LogFormat(log_format))
        for words in warn_of_unknown(os.environ, option_variables(ctx)):
            say_warning(words)
        with _naming_origins(ctx):
            return super().invoke(ctx)


def take_file(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of --config."""
    if path is not None and not context.resilient_parsing:
        node = cast(Any, context.find_root().command).commands["node"]
        _given(context).file = read_file(path, _kinds(node))
        _make_default_map(context)
    return path


def take_preset(context: typer.Context, preset: Preset | None) -> Preset | None:
    """Callback of --preset."""
    _given(context).preset = preset
    _make_default_map(context)
    return preset


def origin_of(context: typer.Context, name: str) -> Origin:
    """Where the value of this option came from."""
    source = context.get_parameter_source(name)
    given = _given(context)
    match source.name if source is not None else "":
        case "COMMANDLINE":
            return Origin("command line")
        case "ENVIRONMENT":
            variable = variable_of(name)
            words = f"{variable}={os.environ.get(variable, ''):.80} in the environment"
            return Origin("environment", variable, words)
        case "DEFAULT_MAP" if given.file is not None and name in given.file.values:
            return Origin("file", given.file.place(name), given.file.words(name))
        case "DEFAULT_MAP" if given.preset is not None:
            value = PRESETS[given.preset][name]
            return Origin("preset", given.preset, f"in the preset {given.preset}, {name} = {value}")
    return Origin("default")


def option_variables(context: typer.Context) -> set[str]:
    """The variables of all commands that read any."""
    commands = cast(Any, context.find_root().command).commands.values()
    return {
        variable_of(parameter.name)
        for command in commands
        if isinstance(command, ConfiguredCommand)
        for parameter in command.params
        if parameter.name is not None and getattr(parameter, "allow_from_autoenv", False)
    }


def _given(context: typer.Context) -> _Given:
    given: _Given = context.meta.setdefault(_META, _Given())
    return given


def _make_default_map(context: typer.Context) -> None:
    given = _given(context)
    preset = {} if given.preset is None else PRESETS[given.preset]
    context.default_map = {**preset, **({} if given.file is None else given.file.values)}


def _kinds(command: Any) -> dict[str, Any]:
    """What a file may set, and of what kind each is."""
    hints = get_type_hints(command.callback)
    names = {parameter.name for parameter in command.params} - ABOUT_ITSELF
    return {name: _without_none(hint) for name, hint in hints.items() if name in names}


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not NoneType)
    return hint


@contextlib.contextmanager
def _naming_origins(context: typer.Context) -> Iterator[None]:
    try:
        yield
    except CommandLineError as error:
        words = words_of(error)
        if origins := _origins_in(words, context):
            raise UsageError(f"{origins}: {_OPTION.sub('', words)}", ExitCode.CONFIGURATION) from None
        raise
    except UsageError as error:
        if origins := _origins_in(str(error), context):
            raise UsageError(f"{origins}: {error}", ExitCode.CONFIGURATION) from None
        raise


def words_of(error: Exception) -> str:
    """The sentence of a CommandLineError."""
    words = str(cast(Any, error).format_message()).removesuffix(".")
    for pattern, plain in _PLAIN.items():
        words = re.sub(pattern, plain, words, count=1)
    return words


def _origins_in(words: str, context: typer.Context) -> str:
    """Of the options that this refusal names, as far as they are not from the command line."""
    named = dict.fromkeys(re.findall(r"--[a-z][a-z0-9-]*", words))
    names = {option: parameter.name for parameter in context.command.params for option in parameter.opts}
    found = (origin_of(context, names[option]).words for option in named if names.get(option))
    return ", and ".join(filter(None, found))
