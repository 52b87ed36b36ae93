"""Distribute shards of data, in a folder or any place that fsspec reads, among the nodes:
docs/how-to/data.md.

Training scripts use `Shards`, and catch `StoreError`, which it raises when a store fails permanently.
"""

from p2psgd.base.errors import StoreError
from p2psgd.data.shards import Shards
from p2psgd.data.store import RetryPolicy

__all__ = ["RetryPolicy", "Shards", "StoreError"]
