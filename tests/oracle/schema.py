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

COMPOUND: Final = {"object", "list"}
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


def differences(frozen: Mapping[str, Frozen], now: Mapping[str, Types]) -> Iterator[str]:
    """Yield a line for each path and type that is new, or missing though it was in all observations.

    Documents whose names begin with the same word are of one kind: what one of them has shown, all may show.
    What was null in one of them may be null in all, as long as one of them still shows what else it was.
    Where a float was seen an int will do.
    """
    for kind in sorted({_kind(name) for name in (*frozen, *now)}):
        yield from _differences_of_kind(
            kind,
            {name: each for name, each in frozen.items() if _kind(name) == kind},
            {name: each for name, each in now.items() if _kind(name) == kind},
        )


def _differences_of_kind(kind: str, frozen: Mapping[str, Frozen], now: Mapping[str, Types]) -> Iterator[str]:
    ever = _merged(_parsed(each, always=False) for each in frozen.values())
    for name in sorted({*frozen, *now}):
        always, shown = _parsed(frozen.get(name, {}), always=True), now.get(name, {})
        for line in (*_unknown(shown, ever), *_missing(shown, always, ever)):
            yield f"{name}: {line}"
    seen = _merged(now.values())
    for path, types in _merged(_parsed(each, always=True) for each in frozen.values()).items():
        if "null" in ever[path]:
            missing = _widened(types, ever[path]) - _widened(seen.get(path, set()), ever[path]) - {"null"}
            if missing:
                yield f"{kind}: {path}: is never {_listed(missing)}"


def _unknown(shown: Types, ever: Types) -> Iterator[str]:
    for path, types in shown.items():
        if path not in ever:
            yield f"{path}: is new, {_listed(types)}"
        elif unknown := _widened(types, ever[path]) - ever[path]:
            yield f"{path}: is {_listed(unknown)}, and was {_listed(ever[path])}"


def _missing(shown: Types, always: Types, ever: Types) -> Iterator[str]:
    for path, types in always.items():
        if path not in shown:
            yield f"{path}: is gone, was {_listed(ever[path])}"
            continue
        demanded = types & COMPOUND if "null" in ever[path] else types
        missing = _widened(demanded, ever[path]) - _widened(shown[path], ever[path])
        if missing:
            yield f"{path}: is never {_listed(missing)}, and was {_listed(ever[path])}"


def _kind(name: str) -> str:
    return name.partition(" ")[0]


def _parsed(frozen: Frozen, *, always: bool) -> Types:
    """Return all that was seen, or what was in all observations."""
    if always:
        certain = {path: types for path, types in frozen.items() if not path.endswith("?")}
        return {path: {name for name in types.split() if name[-1] != "?"} for path, types in certain.items()}
    return {
        path.removesuffix("?"): {name.removesuffix("?") for name in types.split()}
        for path, types in frozen.items()
    }


def _merged(schemas: Iterable[Types]) -> Types:
    merged: Types = {}
    for schema in schemas:
        for path, types in schema.items():
            merged[path] = merged.get(path, set()) | types
    return merged


def _widened(types: set[str], ever: set[str]) -> set[str]:
    """Return types, with float in the place of int where a float was seen."""
    return {"float" if name == "int" and "float" in ever else name for name in types}


def _listed(types: set[str]) -> str:
    return " ".join(sorted(types))
