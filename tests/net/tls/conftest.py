from __future__ import annotations

import pytest

from tests.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of the run that is tested."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
