from __future__ import annotations

from p2psgd.cli.local.run import Speed


def test_only_the_time_in_training_counts() -> None:
    speed = Speed()
    for now, samples in ((0.0, 0), (10.0, 100), (11.0, 300), (12.0, 300), (14.0, 900), (90.0, 900)):
        speed.note(samples, now)
    assert speed.per_s == 200


def test_one_look_gives_no_speed() -> None:
    speed = Speed()
    assert speed.per_s is None
    speed.note(100, 1.0)
    speed.note(100, 2.0)
    assert speed.per_s is None
