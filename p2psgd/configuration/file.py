"""A TOML file of options: flat, `log_budget = 512` for `--log-budget 512`.

Values are checked here for their kind alone, which TOML knows and a command line does not; what they may be
is for the command to say. A path in the file is relative to the file, not to where the command was started.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from p2psgd.errors import ExitCode, UsageError

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
