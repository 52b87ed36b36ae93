"""Schemas of JSON documents: which paths there are, and of which types.

A path is the keys joined by dots, with `[]` for the elements of a list and `{}` for the keys of a mapping
whose keys are data. What a live program shows depends on the moment, so a schema is made of several
observations: a path or type with `?` was not in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Types = dict[str, set[str]]  # path -> types
Frozen = dict[str, str]  # path, with ? if it may be missing -> types

MAPPINGS: Final = ("dropped", "refused", "answered", "cut")  # the last key of mappings whose keys are data
NAMES: Final = {
    dict: "object",
    list: "list",
    str: "text",
    bool: "bool",
    int: "int",
    float: "float",
    type(None): "null",
}


def types_of(samples: Iterable[Any]) -> Types:
    """Return the schema of an observation: all that any of its samples shows."""
    found: Types = {}
    for sample in samples:
        for path, name in _walk("", sample):
            found.setdefault(path, set()).add(name)
    return found


def _walk(path: str, value: Any) -> Iterator[tuple[str, str]]:
    yield path or ".", NAMES[type(value)]
    if isinstance(value, dict):
        is_mapping = path.rpartition(".")[2] in MAPPINGS
        for key, each in value.items():
            yield from _walk(f"{path}{{}}" if is_mapping else f"{path}.{key}" if path else key, each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk(f"{path}[]", each)


def union(observations: list[Types]) -> Frozen:
    """Return what several observations have in common and, marked by ?, what only some have."""
    frozen: Frozen = {}
    for path in sorted({path for each in observations for path in each}):
        seen = [each.get(path, set()) for each in observations]
        always, ever = set.intersection(*seen), set.union(*seen)
        types = " ".join(name if name in always else f"{name}?" for name in sorted(ever))
        frozen[path if all(seen) else f"{path}?"] = types
    return frozen


def differences(frozen: Mapping[str, str], now: Types) -> Iterator[str]:
    """Yield a line for each path and type that is new, or missing though it was in all observations.

    Where a float was seen an int will do, and null need not be seen again.
    """
    known = {path.removesuffix("?"): types.split() for path, types in frozen.items()}
    for path, seen in now.items():
        if path not in known:
            yield f"{path}: is new, {' '.join(sorted(seen))}"
            continue
        was = " ".join(known[path])
        ever = {name.removesuffix("?") for name in known[path]}
        always = {name for name in known[path] if not name.endswith("?")} - {"null"}
        types = _widened(seen, ever)
        if types - ever:
            yield f"{path}: is {' '.join(sorted(types - ever))}, and was {was}"
        elif missing := _widened(always, ever) - types:
            yield f"{path}: is never {' '.join(sorted(missing))}, and was {was}"
    for path in frozen:
        if not path.endswith("?") and path not in now:
            yield f"{path}: is gone, was {frozen[path]}"


def _widened(types: set[str], ever: set[str]) -> set[str]:
    """Return types, with float in the place of int where a float was seen."""
    return {"float" if name == "int" and "float" in ever else name for name in types}
