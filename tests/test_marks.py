"""The mark `long` stays where it must be: `make test` needs no namespaces, browser, PyTorch or sanitizers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORTS = re.compile(
    r"^from tests\.(?:lan|browser|torch\.needed) import|^from tests\..* import .*\bSANITIZERS\b", re.M
)
MARK = re.compile(r"^(?:pytestmark = |    |@)pytest\.mark\.(?:long|root)\b", re.M)  # what needs root is long


def test_files_that_need_other_software_carry_the_mark() -> None:
    files = {
        path: path.read_text()
        for name in ("tests", "benchmarks")
        for path in (ROOT / name).rglob("test_*.py")
    }
    needy = {path for path, text in files.items() if IMPORTS.search(text)}
    assert len(needy) > 10, "or they are not found"
    assert [str(path) for path in needy if not MARK.search(files[path])] == []
