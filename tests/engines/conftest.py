"""What the tests of engines have in common: they take minutes, and software that few machines have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture
def needs() -> Callable[..., None]:
    """Skip a test visibly unless `make test-engines` runs it and these programs are here."""

    def check(*programs: str) -> None:
        if not os.environ.get("P2PSGD_ENGINES"):
            pytest.skip("takes minutes: make test-engines")
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        missing = [program for program in programs if shutil.which(program, path=path) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}")

    return check
