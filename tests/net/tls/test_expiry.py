from __future__ import annotations

import itertools
from datetime import timedelta

from p2psgd.net.tls import ExpiryWatch, describe_expiry
from tests.certificates import NOW


def test_the_end_is_told_from_30_days_before_and_once_a_day() -> None:
    watch, end = ExpiryWatch(), NOW + timedelta(days=31)
    times = [NOW + timedelta(hours=hours) for hours in range(33 * 24)]
    told = [time for time in times if watch.due(end, time)]
    assert told[0] - NOW == timedelta(days=1)
    assert len(told) == 32
    assert all(later - sooner == timedelta(days=1) for sooner, later in itertools.pairwise(told))


def test_a_renewed_certificate_is_a_new_matter() -> None:
    watch = ExpiryWatch()
    assert "in 4 days" in watch.due(NOW + timedelta(days=5), NOW + timedelta(hours=1))
    assert watch.due(NOW + timedelta(days=365), NOW) == ""
    assert "in 1 day:" in watch.due(NOW + timedelta(days=1), NOW)


def test_what_has_ended_is_told_as_such() -> None:
    words = describe_expiry(NOW, NOW + timedelta(seconds=1))
    assert "has expired" in words
    assert "`p2psgd ca issue --renew`" in words
