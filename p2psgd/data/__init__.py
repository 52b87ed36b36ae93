"""Distribute shards of data, in a folder or any place that fsspec reads, among the nodes:
docs/how-to/data.md.

Training scripts use `Shards`, and catch `StoreError`, which it raises when a store fails permanently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2psgd.base.errors import StoreError
    from p2psgd.data.shards import Shards
    from p2psgd.data.store import RetryPolicy

__all__ = ["RetryPolicy", "Shards", "StoreError"]


def __getattr__(name: str) -> Any:
    match name:
        case "Shards":
            from p2psgd.data.shards import Shards

            return Shards
        case "RetryPolicy":
            from p2psgd.data.store import RetryPolicy

            return RetryPolicy
        case "StoreError":
            from p2psgd.base.errors import StoreError

            return StoreError
        case _:
            raise AttributeError(f"module 'p2psgd.data' has no attribute {name!r}")
