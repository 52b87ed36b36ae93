"""The words that STYLE does not want, and docstrings that cannot stand alone, get fewer and never more."""

from __future__ import annotations

import ast

import pytest

from tests.language import (
    FRAGMENTS,
    ROOT,
    WORDS,
    count,
    grown,
    in_module,
    in_page,
    lowered,
    read_kept,
    search,
)


def test_no_unwanted_word_and_no_fragment_is_new() -> None:
    found = list(search())
    assert len({each.file for each in found}) > 1, "or nothing was read"
    faults = grown(count(found), read_kept())
    assert not faults, "\n".join([*faults, "python -m tests.language shows where"])


def test_only_what_is_searched_for_is_kept() -> None:
    assert set(read_kept()) <= {*WORDS, FRAGMENTS}


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("A node waits for one patience.", 1),
        ("Patience, and\nwhoever waits.", 2),
        ("`--failure-timeout 5`, and [it](patience.md)", 0),
        ("```\nfailure_timeout = 5\n```", 0),
        ("The life cycle of a node, a lifetime", 0),
    ],
)
def test_pages_are_searched_but_not_their_code(page: str, number: int) -> None:
    assert len(list(in_page(page, "docs/a.md"))) == number


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ('"""Of one node."""', [FRAGMENTS]),
        ('def f() -> str:\n    """Whom to wish out, and what is due."""', 3),
        ('class A:\n    """Update straggler votes and run due timers."""', []),
        ('say("the lattice of a weight")', 1),
        ('say(f"{name} was told by {node} of it")', 1),
        ('KEY = "patience"', []),
        ("# a comment about patience", []),
    ],
)
def test_docstrings_and_messages_are_searched(source: str, kinds: list[str] | int) -> None:
    found = [each.kind for each in in_module(source, "p2psgd/core/a.py")]
    assert (len(found) if isinstance(kinds, int) else found) == kinds


def test_counts_fall_and_never_rise() -> None:
    kept = {"a": {"core": 3, "net": 1}, "b": {"net": 1}}
    assert lowered({"a": {"core": 2, "net": 5}}, kept) == {"a": {"core": 2, "net": 1}}
    assert grown({"a": {"core": 3}}, kept) == []
    assert len(grown({"a": {"core": 4}, "c": {"wire": 1}}, kept)) == 2


PUBLIC = {  # what training scripts call, by file; a class stands for its methods
    "p2psgd/client/attach.py": ["attach"],
    "p2psgd/client/link.py": [],  # all classes: Link and its parts
    "p2psgd/data/shards.py": ["Shards"],
    "p2psgd/gpu/__init__.py": ["attach"],
    "p2psgd/torch/attach.py": ["attach"],
    "p2psgd/torch/model_link.py": ["ModelLink"],
}


def public_functions(file: str) -> list[tuple[ast.FunctionDef, str]]:
    """The public functions and methods of a file, each with its docstring; that of a class for its making."""
    found = []
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        chosen = not PUBLIC[file] or getattr(node, "name", "") in PUBLIC[file]
        if isinstance(node, ast.FunctionDef) and chosen and PUBLIC[file]:
            found.append((node, ast.get_docstring(node) or ""))
        elif isinstance(node, ast.ClassDef) and chosen:
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found += [(each, ast.get_docstring(each) or "") for each in methods if each.name[0] != "_"]
    return found


@pytest.mark.parametrize("file", PUBLIC)
def test_every_parameter_of_a_public_function_is_documented(file: str) -> None:
    functions = public_functions(file)
    assert functions
    for function, said in functions:
        assert said, function.name
        arguments = function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
        names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
        missing = [name for name in names if name != "self" and f"\n    {name}: " not in said]
        assert not missing, f"{function.name}: {missing}"
