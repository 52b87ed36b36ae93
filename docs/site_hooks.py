"""MkDocs hooks: show the pages that live beside the code, and follow links that leave docs/.

All Markdown in this repository links by paths in the repository, so that it reads well there. On the site a
link to a page is a link to that page, and a link to any other file becomes that file's path. A link to a file
that does not exist is a warning, which a strict build takes for an error.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {  # in the repository: on the site
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "explanation/security.md",
    "p2psgd/recipes/README.md": "reference/recipes.md",
    "p2psgd/wire/EVALUATIONS.md": "reference/wire/EVALUATIONS.md",
    "p2psgd/wire/OWNERS.md": "reference/wire/OWNERS.md",
    "p2psgd/wire/RINGS.md": "reference/wire/RINGS.md",
    "p2psgd/wire/SPEC.md": "reference/wire/SPEC.md",
    "p2psgd/wire/VIEWS.md": "reference/wire/VIEWS.md",
    "systemd/README.md": "how-to/systemd.md",
}
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ALL_DECISIONS = "<!-- all decisions -->"
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live beside the code."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def all_decisions() -> str:
    """Return the titles of all decisions, by subject."""
    lines = []
    for page in sorted((DOCS / "decisions").glob("*.md")):
        title, *entries = re.findall(r"^##? (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        subject = title.removeprefix("Decisions: ")
        lines += [f"### [{subject}](decisions/{page.name})", "", *(f"- {entry}" for entry in entries), ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of one page from paths in the repository to pages of the site."""
    source, place = Path(page.file.abs_src_path), page.file.src_uri
    markdown = markdown.replace(_ALL_DECISIONS, all_decisions() if _ALL_DECISIONS in markdown else "")

    def rewrite(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return link[0]
        found = (source.parent / path).resolve()
        if not found.exists():
            _log.warning("%s links to %s, which does not exist", source.relative_to(ROOT), target)
            return link[0]
        if found.is_relative_to(DOCS):
            uri = found.relative_to(DOCS).as_posix()
        elif (name := found.relative_to(ROOT).as_posix()) in PAGES:
            uri = PAGES[name]
        else:
            return f"`{name}`" if text.strip("`").endswith(found.name) else f"{text} (`{name}`)"
        relative = os.path.relpath(uri, os.path.dirname(place) or ".")
        return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(rewrite, part) for index, part in enumerate(parts))
