"""When to say that a certificate ends: from 30 days before, once a day at most. Pure: time is passed in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

WARNED_DAYS: Final = 30  # long enough for a person who looks at the logs once a month
_AGAIN: Final = timedelta(days=1)


class ExpiryWatch:
    """Of one certificate at a time."""

    def __init__(self) -> None:
        self._said: tuple[datetime, datetime] | None = None  # of which end, and when

    def due(self, expires: datetime, now: datetime) -> str:
        """What to say now, both times with their zone; empty: nothing."""
        if expires - now > timedelta(days=WARNED_DAYS):
            return ""
        if self._said is not None and self._said[0] == expires and now - self._said[1] < _AGAIN:
            return ""
        self._said = expires, now
        return describe_expiry(expires, now)


def describe_expiry(expires: datetime, now: datetime) -> str:
    """In one sentence; empty while there is time."""
    left = expires - now
    if left > timedelta(days=WARNED_DAYS):
        return ""
    when = f"{expires:%Y-%m-%d %H:%M} UTC"
    advice = "`p2psgd ca issue --renew` makes a new one, SIGHUP or a restart has the daemon take it"
    if left < timedelta(0):
        return f"this node's certificate has expired on {when}, and peers refuse new links to it: {advice}"
    days = left.days
    return f"this node's certificate expires on {when}, in {days} day{'' if days == 1 else 's'}: {advice}"
