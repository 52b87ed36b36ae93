"""Options of a command from a TOML file, a preset and the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import enum
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from p2psgd.errors import ExitCode, UsageError
from p2psgd.observe.logs import LogFormat, begin_log, say_warning

# ----------------------------------------------------------------------------
# Options that a command takes from elsewhere than its command line: a TOML file, a preset, the environment.
#
# All of it is derived from the command's own options (Click's default_map and auto_envvar_prefix), so that
# an option is declared once, in the command's signature, and can be given in every way.


# ----------------------------------------------------------------------------
# A TOML file of options: flat, `log_budget = 512` for `--log-budget 512`.
#
# Values are checked here for their kind alone, which TOML knows and a command line does not; what they may
# be is for the command to say. A path in the file is relative to the file, not to where the command was
# started.


FILE_BYTES_MAX: Final = 64 * 1024
INTEGER_BITS_MAX: Final = 63  # as in TOML; tomllib reads longer ones as well
_KINDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number, without quotes",
    float: "a number, without quotes",
}


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """`values` by the option's name, `lines` where they stand, as far as that is known."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, name: str) -> str:
        """`/etc/p2psgd/node.toml:3`, as editors and compilers write it."""
        return f"{self.path}:{self.lines[name]}" if name in self.lines else str(self.path)

    def words(self, name: str) -> str:
        """The same for a sentence, with what stands there."""
        return _words(self.path, self.lines.get(name), name, self.values[name])


def read_file(path: Path, kinds: Mapping[str, Any]) -> ConfigurationFile:
    """The options in the file, each of the kind that `kinds` has for its name: bool, int, float, Path, str, a
    class of words, or a list of one of them.

    UsageError that names file and line for a file that cannot be read, an unknown name or a value of another
    kind.
    """
    text = _read_text(path)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        words = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        words = str(error) if isinstance(error, tomllib.TOMLDecodeError) else words
        raise _refusal(f"{path} is not TOML: {words[:1].lower()}{words[1:200]}") from None
    values, lines = {}, {}
    for name, value in found.items():
        line = _line_of(name, text)
        if name not in kinds:
            near = nearest(name, kinds)
            hint = f", the nearest is {near}" if near else " nor one like it (see --help)"
            hint += "; options stand there without [tables]" if isinstance(value, dict) else ""
            raise _refusal(f"{_place(path, line)}: there is no option {name!r:.80}{hint}")
        if line is not None:
            lines[name] = line
        try:
            values[name] = _checked(value, kinds[name], path.parent)
        except ValueError as error:
            raise _refusal(f"{_words(path, line, name, value)}: it takes {error}") from None
    return ConfigurationFile(path, values, lines)


def nearest(name: str, known: Collection[str]) -> str | None:
    """What may have been meant by `name`, which is not known."""
    folded = name.replace("-", "_")
    folded = folded.upper() if any(each.isupper() for each in known) else folded.lower()
    near = difflib.get_close_matches(folded, sorted(known), n=1, cutoff=0.5)
    return near[0] if near else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise _refusal(f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a file of options?")
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal(f"{path} is not a text file in UTF-8") from None
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise _refusal(f"cannot read the configuration {path}: {why}") from None


def _line_of(name: str, text: str) -> int | None:
    """Where `name = ` or `[name]` stands at the top level, which tomllib does not tell; the first line, from
    1, that looks so and is not inside a text of several lines: all before it is whole.
    """
    lines = text.splitlines()
    looks_so = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
    for index, line in enumerate(lines):
        if looks_so.match(line) and _is_whole("\n".join(lines[:index])):
            return index + 1
    return None


def _is_whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _checked(value: Any, kind: Any, folder: Path) -> Any:
    """The value for the command; ValueError that says what is taken if it is of another kind."""
    if get_origin(kind) is list:
        if not isinstance(value, list):
            raise ValueError("a list in square brackets")
        return [_checked(each, get_args(kind)[0], folder) for each in value]
    if type(value) is int and value.bit_length() > INTEGER_BITS_MAX:
        raise ValueError(f"no number of more than {INTEGER_BITS_MAX} bits")
    if kind in _KINDS:
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        raise ValueError(_KINDS[kind])
    if not isinstance(value, str):
        raise ValueError("text, in quotes")
    if "\0" in value:
        raise ValueError("text without a NUL")
    if kind is Path:
        try:
            return str(folder / Path(value).expanduser())
        except RuntimeError:
            raise ValueError("a path that does not begin with ~: there is no such user") from None
    return value


def _place(path: Path, line: int | None) -> str:
    return f"in {path}" if line is None else f"in {path}, line {line}"


def _words(path: Path, line: int | None, name: str, value: Any) -> str:
    try:
        written = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python writes no number of thousands of digits
        written = "..."
    return f"{_place(path, line)}, {name} = {written:.80}"


def _refusal(words: str) -> UsageError:
    return UsageError(words, ExitCode.CONFIGURATION)


# ----------------------------------------------------------------------------
# P2PSGD_<OPTION> in the environment, and what there is that nothing reads.


PREFIX: Final = "P2PSGD"
# Read elsewhere, and no options: where a trainer finds its daemon and keeps data, which code runs, what
# marks a local run.
OTHERS: Final = frozenset(
    {
        "P2PSGD_CACHE",
        "P2PSGD_CACHE_BYTES",
        "P2PSGD_CONTROL",
        "P2PSGD_CPU",
        "P2PSGD_LOCAL_RUN",
        "P2PSGD_LOOP",
        "P2PSGD_RESIDUAL_COPY_S",
        "P2PSGD_STATE",
    }
)
TESTS: Final = ("P2PSGD_REQUIRE_", "P2PSGD_GPU_", "P2PSGD_PROBE")  # switches of this project's own tests
NAMED_MAX: Final = 8


def variable_of(option: str) -> str:
    """P2PSGD_LOG_BUDGET of log_budget."""
    return f"{PREFIX}_{option.upper()}"


def warn_of_unknown(environment: Mapping[str, str], options: Collection[str]) -> list[str]:
    """A sentence for each variable, NAMED_MAX at most, that looks like one of ours and is none.

    They are not refused: an orchestrator puts variables there for each service that it knows, and one of them
    may be called p2psgd.
    """
    known = OTHERS | set(options)
    unknown = sorted(
        name
        for name in environment
        if name.startswith(f"{PREFIX}_") and name not in known and not name.startswith(TESTS)
    )
    return [_unknown_words(name, nearest(name, known)) for name in unknown[:NAMED_MAX]]


def _unknown_words(name: str, near: str | None) -> str:
    hint = f", the nearest is {near}" if near else ""
    return f"{ascii(name)[1:-1]:.80} in the environment is read by nothing{hint}"


# ----------------------------------------------------------------------------
# What to start from, by the network that the nodes are on; all that is said explicitly is stronger.
#
# Few and small on purpose: patience is the one time setting and all other times follow from it, and the
# budgets of the log fit every network. The defaults are those of a LAN.


class Preset(enum.StrEnum):
    """--preset"""

    LOCAL = "local"
    LAN = "lan"
    WAN = "wan"


PRESETS: Final[Mapping[Preset, Mapping[str, Any]]] = {
    # Nodes of one machine: reached by nobody else. They share one disk, and a snapshot over loopback comes
    # sooner than what a log on that disk would replay.
    Preset.LOCAL: {"listen": "127.0.0.1:7315", "log_disk_budget": 0},
    Preset.LAN: {},
    # A lost segment is sent again after 1, 2, 4 and 8 s in the worst case, and routers may take tens of
    # seconds to find another way: neither is a reason to leave a node out. A dead one is noticed later.
    Preset.WAN: {"patience": 20.0},
}


# ----------------------------------------------------------------------------
# A command whose options may also come from a node's TOML file, a preset and the environment.
#
# Click resolves each option: command line, then $P2PSGD_<OPTION>, then its default_map, which holds what the
# file says over what the preset says, then the default. `--config` and `--preset` are eager, so that the map
# is made before any other option is looked up. File and preset are a node's, whichever command reads them:
# it takes what it has an option for.


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


# ----------------------------------------------------------------------------
# What is in force for a node, and where each value came from: for `p2psgd config show`.


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
    rows = [(each.name, _toml(each.value), _origin_place(each.origin)) for each in shown]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{name:<{wide[0]}}  {value:<{wide[1]}}  {place}" for name, value, place in rows)


def _origin_place(origin: Origin) -> str:
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
