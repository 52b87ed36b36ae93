"""The words of --rdzv-conf and --rdzv-endpoint that torchrun's handler of p2psgd takes."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests.torch.needed import torch

pytestmark = pytest.mark.long


def parameters(endpoint: str = "", **configuration: Any) -> Any:
    return torch.distributed.elastic.rendezvous.RendezvousParameters(
        "p2psgd", endpoint, "job", 1, 3, timeout=900, **configuration
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": "here:29400"}, "--rdzv-endpoint 'here:29400' is refused"),
        (
            {"join_timout": "60"},
            "--rdzv-conf 'join_timout' is unknown to --rdzv-backend p2psgd",
        ),
        ({"port": "abc"}, "'port' does not represent a valid integer"),
    ],
)
def test_what_the_handler_does_not_know_is_refused(given: dict[str, Any], words: str) -> None:
    handler = importlib.import_module("p2psgd.torch.rendezvous").handler
    handler()(parameters(port="29401", join_timeout="60", two_nodes="stall"))
    with pytest.raises(ValueError, match=re.escape(words)):
        handler()(parameters(**given))
