"""Node ids as people read and write them: 16 hexadecimal digits."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile("[0-9a-fA-F]{16}", re.ASCII)


def parse_node_id(text: str) -> int | None:
    """The id that `text` is; None if it has another form, and only then it may be a name."""
    return int(text, 16) if _FORM.fullmatch(text) else None
