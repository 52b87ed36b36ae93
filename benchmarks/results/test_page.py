"""Test how the page is put together."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.results import page


def test_the_page_has_the_sections_that_have_something_to_say_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("first_section", "## First"), ("silent_section", ""), ("last_section", "## Last")):
        module = ModuleType(name)
        module.section = lambda text=text: text  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    names = ("first_section", "silent_section", "last_section")
    monkeypatch.setattr(page, "SECTIONS", names)
    page.write(tmp_path / "results.md")
    assert (tmp_path / "results.md").read_text() == f"{page.INTRODUCTION}\n\n## First\n\n## Last\n"
