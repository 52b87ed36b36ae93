"""The page that shows a node: one HTML file, put together from the parts beside this one as the daemon
starts.

It fetches nothing but status.json from where it came from, and its Content-Security-Policy names the one
style and the one script in it by their hashes, so nothing else runs, whatever text a status holds.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

PARTS: Final = Path(__file__).parent
STYLE: Final = "style.css"
SCRIPTS: Final = ("format.js", "history.js", "chart.js", "map.js", "panels.js", "poll.js")  # in this order


def load_page() -> tuple[bytes, str]:
    """Return the whole page and its Content-Security-Policy."""
    style = _read(STYLE)
    script = "\n".join(['"use strict";', *map(_read, SCRIPTS)])
    html = _read("page.html").replace("/* style */", style).replace("/* script */", script)
    policy = "; ".join(
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src data:",
            f"style-src {_hash_of(style)}",
            f"script-src {_hash_of(script)}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return html.encode(), policy


def _read(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
