"""p2psgd: data-parallel SGD on ordinary machines over ordinary networks.

A training script attaches with `with p2psgd.attach(...) as link:` and catches `p2psgd.TrainerError`, which a
link raises for every call that it refuses. `p2psgd.data.Shards` distributes data in shards. The names are
imported when they are used, so that commands start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2psgd import data
    from p2psgd.base.errors import TrainerError
    from p2psgd.client.attach import attach
    from p2psgd.client.scipy_fun import scipy_fun

    __version__: str

__all__ = ["TrainerError", "__version__", "attach", "data", "scipy_fun"]


def __getattr__(name: str) -> Any:
    match name:
        case "attach":
            from p2psgd.client.attach import attach

            return attach
        case "scipy_fun":
            from p2psgd.client.scipy_fun import scipy_fun

            return scipy_fun
        case "data":
            return import_module("p2psgd.data")
        case "TrainerError":
            from p2psgd.base.errors import TrainerError

            return TrainerError
        case "__version__":
            from importlib.metadata import version

            # Read once: under a process that runs for months the package may be replaced.
            globals()[name] = version("p2psgd")
            return globals()[name]
        case "torch" | "gpu" | "ray":
            raise AttributeError(f"p2psgd.{name} is imported by itself: import p2psgd.{name}")
        case _:
            raise AttributeError(f"module 'p2psgd' has no attribute {name!r}")
