"""The same mistake of the same host is one line a minute."""

from __future__ import annotations

import pytest

from p2psgd.net.rejections import INTERVAL_S, KEPT_MAX, DropLog
from p2psgd.wire.reject import PeerError, RejectCode


def test_the_same_of_the_same_host_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    complaints, error = DropLog(), PeerError(RejectCode.RUN, "b and a train different runs")
    for attempt in range(100):
        complaints.dropped(f"10.0.0.2:{40_000 + attempt}", error, 0.5 * attempt)
    complaints.dropped("10.0.0.3:40000", error, 50.0)
    complaints.dropped("10.0.0.2:41000", PeerError(RejectCode.CHECKSUM, "a frame is damaged"), 50.0)
    complaints.dropped("10.0.0.2:41001", error, INTERVAL_S)
    assert [record.getMessage() for record in caplog.records] == [
        "dropped 10.0.0.2:40000: run: b and a train different runs",
        "dropped 10.0.0.3:40000: run: b and a train different runs",
        "dropped 10.0.0.2:41000: checksum: a frame is damaged",
        "dropped 10.0.0.2:41001: run: b and a train different runs (99 more since it was said last)",
    ]


def test_what_is_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    complaints = DropLog()
    for number in range(3 * KEPT_MAX):
        complaints.dropped("10.0.0.2:40000", PeerError(RejectCode.RUN, f"words {number}"), 0.0)
    assert len(complaints._said) == KEPT_MAX
    assert len(caplog.records) == 3 * KEPT_MAX
