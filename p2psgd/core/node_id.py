"""Nodes as people read and write them: by their names, or by ids of 16 hexadecimal digits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_FORM: Final = re.compile("[0-9a-fA-F]{16}", re.ASCII)


def parse_node_id(text: str) -> int | None:
    """The id that `text` is; None if it has another form, and only then it may be a name."""
    return int(text, 16) if _FORM.fullmatch(text) else None


def name_node(node: int, names: Mapping[int, str]) -> str:
    """What people call a node: its name if that is known, else its id."""
    return names.get(node) or f"{node:016x}"
