"""Count words and docstrings that STYLE does not want, by page and package, against counts that only fall.

    python -m tests.language            show what is counted, file by file
    python -m tests.language --lower    write the counts of today where they are lower than the kept ones

tests/language.json holds the counts. `tests/test_language.py` fails where one has grown. A file that moves to
another package takes its count along: then the numbers are edited by hand, and their sum stays what it was.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = ROOT / "tests" / "language.json"

# The left side matches in pages, messages and docstrings; the right side is what to write.
WORDS: Final = {
    r"\bpatiences?\b": "failure timeout",
    r"\bgentle[ -]starts?\b": "warm start",
    r"(?<!of )\blife\b(?![ -]?(?:cycle|time))|\blives\b(?! (?:in|on|at|with)\b)": "incarnation, start",
    r"\b(?:co-?)?found(?:er|ers|ing)\b|\bfounded\b": "bootstrap, cluster id; a run begins",
    r"\blattice\b": "quantized weight",
    r"\bwish(?:es|ed)?\b|\bunwanted\b": "pending change, evict, remove",
    r"\blaggards?\b|\blateness\b": "straggler",
    r"\bcarriers?\b": "relay",
    r"\bintake\b|\badoption\b|\btakers?\b": "snapshot: serve, fetch, receive, install; joiner",
    r"\bkeepers?\b": "checkpointer",
    r"\bdiallers?\b": "dialer",
    r"\bupkeep\b": "eviction, retention",
    r"\bmend(?:s|ed|ing)?\b": "repair, fix",
    r"\bwhoever\b|\bwhomever\b|\bwhom\b": "a noun: any node that ..., the node that ...",
    r"\btold\b|\btells\b": "a node reports, a peer sends, a page explains",
    r"\bhear(?:s|d)? (?:of|from)\b": "receive",
    r"\bsoonest\b|\bso many\b|\bso long\b": "fastest; this many; this long",
    r"\brubbish\b": "corrupt",
    r"\b(?:is|are|was|were) to be\b": "must be, will be, or the active voice",
    r"\bcomes? (?:about|by)\b": "happens, gets",
    r"(?<!there )\bis no (?!longer|more|less|other)[a-z]+\b": "is not a ...",
}
_WORDS: Final = {re.compile(pattern, re.IGNORECASE): pattern for pattern in WORDS}
# How a docstring begins that cannot be read without the name below which it stands.
FRAGMENT: Final = re.compile(
    r"(?:Of|Who|Whom|Whose|What|Whether|How|Which|Why|It|The same|One|Ones|All|Those|That|As|Likewise|Also|"
    r"And|Or|But|Else|Beside|None|Both)\b"
)
# History, what others wrote, and the page that lists the old words.
_LEFT_OUT: Final = ("docs/decisions", "docs/reference/glossary.md")
_PAGES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "systemd/README.md",
    "p2psgd/recipes/README.md",
)


@dataclass(frozen=True, slots=True)
class Found:
    """One unwanted word, or one docstring that begins like a fragment."""

    scope: str  # a page, or a package
    kind: str  # the pattern, or FRAGMENTS
    file: str
    line: int
    text: str


FRAGMENTS: Final = "docstrings that begin with a fragment"


def search() -> Iterator[Found]:
    """Find everything in the pages and in the package."""
    pages = [ROOT / name for name in _PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        if not name.startswith(_LEFT_OUT):
            yield from in_page(page.read_text(encoding="utf-8"), name)
    for module in sorted((ROOT / "p2psgd").rglob("*.py")):
        yield from in_module(module.read_text(encoding="utf-8"), module.relative_to(ROOT).as_posix())


def in_page(text: str, name: str) -> Iterator[Found]:
    """Find unwanted words in a page; not in its code, whose names are as they are."""
    prose = re.sub(r"^ *```.*?^ *```$", _blank, text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`\n]+`|\]\([^)]*\)", _blank, prose)
    for number, line in enumerate(prose.splitlines(), 1):
        yield from _words(line, name, name, number)


def in_module(source: str, name: str) -> Iterator[Found]:
    """Find unwanted words in docstrings and messages, and docstrings that begin with a fragment."""
    parts = Path(name).parts
    scope = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
    tree = ast.parse(source)
    docstrings = set[ast.AST]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
            docstrings.add(first.value)
            said = str(first.value.value)
            yield from _words(said, scope, name, first.lineno)
            if FRAGMENT.match(said):
                yield Found(scope, FRAGMENTS, name, first.lineno, said.partition("\n")[0])
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in docstrings:
            continue
        if len(node.value.split()) >= 3:  # a message, or a part of one
            yield from _words(node.value, scope, name, node.lineno)


def _words(text: str, scope: str, file: str, line: int) -> Iterator[Found]:
    for pattern, kind in _WORDS.items():
        for match in pattern.finditer(text):
            around = text[max(0, match.start() - 30) : match.end() + 30]
            yield Found(scope, kind, file, line, " ".join(around.split()))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


Counts = dict[str, dict[str, int]]


def count(found: list[Found]) -> Counts:
    """Count by kind and scope."""
    counts: Counts = {}
    for (kind, scope), number in sorted(Counter((each.kind, each.scope) for each in found).items()):
        counts.setdefault(kind, {})[scope] = number
    return counts


def read_kept() -> Counts:
    """Read the counts that may not grow."""
    kept: Counts = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept


def grown(now: Counts, kept: Counts) -> list[str]:
    """Describe every count that is above the kept one."""
    return [
        f"{scope}: {number} of {kind!r} instead of {kept.get(kind, {}).get(scope, 0)}; write: "
        + WORDS.get(kind, "a sentence with subject and verb")
        for kind, scopes in now.items()
        for scope, number in scopes.items()
        if number > kept.get(kind, {}).get(scope, 0)
    ]


def lowered(now: Counts, kept: Counts) -> Counts:
    """Return the kept counts, where today's are lower those."""
    least = {
        kind: {
            scope: min(number, now.get(kind, {}).get(scope, 0))
            for scope, number in scopes.items()
            if now.get(kind, {}).get(scope, 0)
        }
        for kind, scopes in kept.items()
    }
    return {kind: scopes for kind, scopes in least.items() if scopes}


def main(arguments: list[str]) -> None:
    """Show what is counted, or lower the kept counts."""
    found = list(search())
    if "--lower" in arguments:
        counts = lowered(count(found), read_kept())
        KEPT.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return
    for each in found:
        print(f"{each.file}:{each.line}: {each.kind}: {each.text}")
    print(f"{len(found)} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
