"""The example dashboard asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from p2psgd.observe.metrics import Metrics
from tests.observe.compressions import description
from tests.observe.statuses import fields, ring, split, status, trainer

DASHBOARD = Path(__file__).parents[2] / "docs" / "how-to" / "grafana.json"
REPLICATION: dict[str, Any] = {
    "ready": True,
    "view": {"number": 1, "members_total": 4, "waits": ""},
    "checkpoint": {"age_s": 1.0, "bytes": 1, "failures": 0},
    "counters": {"quarantines": 0, "evictions_seen": 0, "lost_updates": 0},
}


def test_every_metric_of_the_dashboard_is_one_of_a_node() -> None:
    log = {**fields()["log"], "pressure": 0.5}
    whole = status(compression=description(), ring=ring(), trainer=trainer(**split()), log=log, **REPLICATION)
    there = set(re.findall(r"^(p2psgd_\w+)", Metrics(lambda: whole).text().decode(), re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"p2psgd_\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked <= there
