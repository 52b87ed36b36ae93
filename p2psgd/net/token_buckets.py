"""Token buckets: how often something may happen for each of many keys, such as hosts. Pure.

A bucket holds `burst` tokens at first and gets one back every `interval_s`. Only buckets that are not full
take memory, and at most KEYS_MAX of them: further keys share one bucket, so that an attacker with many keys
gains nothing by washing out those of others.
"""

from __future__ import annotations

from typing import Final

KEYS_MAX: Final = 1024
_THE_REST: Final = ""
_ROUNDING_S: Final = 1e-6


class TokenBuckets:
    """All of one size; times are seconds, monotonic."""

    def __init__(self, *, burst: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._longest_s = burst * interval_s  # until an empty bucket is full
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, now: float) -> bool:
        """Take a token out of this key's bucket; False if it is empty."""
        if key not in self._full_at and len(self._full_at) >= KEYS_MAX:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
            if len(self._full_at) >= KEYS_MAX:
                key = _THE_REST
        full_at = max(self._full_at.get(key, now), now) + self._interval_s
        if full_at - now > self._longest_s + _ROUNDING_S:
            return False
        self._full_at[key] = full_at
        return True
