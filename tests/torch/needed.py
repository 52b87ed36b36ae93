"""PyTorch and p2psgd.torch for tests: whoever imports this is skipped visibly where there is none, unless
P2PSGD_REQUIRE_TORCH is set.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    if os.environ.get("P2PSGD_REQUIRE_TORCH"):
        raise pytest.UsageError("PyTorch is not installed, but P2PSGD_REQUIRE_TORCH is set")
    pytest.skip("needs PyTorch: make .venv/.test-torch", allow_module_level=True)

torch: Any = importlib.import_module("torch")
p2psgd_torch: Any = importlib.import_module("p2psgd.torch")
nn: Any = torch.nn

torch.set_num_threads(1)
