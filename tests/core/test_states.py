"""The page on states is what the tables give, and no table is left out."""

from __future__ import annotations

from tests.core.draw_states import PAGE, ROOT, TABLES, page


def test_the_page_is_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.core.draw_states"


def test_every_table_of_the_product_is_on_the_page() -> None:
    sources = (path for path in (ROOT / "p2psgd").rglob("*.py") if path.name != "transitions.py")
    owners = {str(path.relative_to(ROOT)) for path in sources if " = Transitions(" in path.read_text()}
    assert owners == TABLES.keys()
