"""The page that shows a node: the HTML file beside this one.

It fetches nothing but status.json from where it came from, and its Content-Security-Policy names the one
style and the one script in it by their hashes, so nothing else runs, whatever text a status holds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).with_name("page.html")


def load_page() -> tuple[bytes, str]:
    """Return the whole page and its Content-Security-Policy."""
    html = PAGE.read_text(encoding="utf-8")
    policy = "; ".join(
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src data:",
            f"style-src {_hash_of('style', html)}",
            f"script-src {_hash_of('script', html)}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return html.encode(), policy


def _hash_of(tag: str, html: str) -> str:
    """Return the hash of the text of the only such element."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
