from __future__ import annotations

from p2psgd.node.trainer import LOOKS_MAX, Pace


def test_the_rate_is_that_of_the_last_looks() -> None:
    pace = Pace()
    assert pace.is_due(0.0)
    pace.look(100, 0.0)
    assert (pace.per_s, pace.is_due(0.9), pace.is_due(1.0)) == (None, False, True)
    pace.look(150, 2.0)
    assert pace.per_s == 25.0
    for second in range(3, 3 + LOOKS_MAX):
        pace.look(150, float(second))
    assert pace.per_s == 0.0
