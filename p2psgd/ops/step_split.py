"""Where trainers' time goes, as parts of a step: from what they report of themselves (trainer/step_times.py).

Pure functions of the trainers' part of a status. Computing, waiting, adding and sending make up the whole;
what the daemons did meanwhile is beside them and may overlap with any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from p2psgd.ops import numerals
from p2psgd.ops.figures import Status, number, whole

PARTS: Final = ("computing", "waiting", "adding", "sending")
DAEMONS: Final = ("daemon_adding", "daemon_sending")


def describe_steps(trainers: Iterable[Status]) -> dict[str, Any] | None:
    """Of all steps of these trainers together: how many, how long one took, and the parts as fractions of
    it; None before the first step.
    """
    steps, spent_s = 0, dict.fromkeys((*PARTS, *DAEMONS), 0.0)
    for trainer in trainers:
        steps += whole(trainer, "steps")
        for part in spent_s:
            spent_s[part] += number(trainer, f"{part}_s") or 0.0
    total_s = sum(spent_s[part] for part in PARTS)
    if not steps or total_s <= 0:
        return None
    parts = {part: round(part_s / total_s, 4) for part, part_s in spent_s.items()}
    return {"steps": steps, "step_ms": round(1000 * total_s / steps, 4), **parts}


def steps_words(steps: Mapping[str, Any]) -> str:
    """The same in words; of what the daemons did only if they did it."""
    own = ", ".join(f"{part} {_percent(steps[part])}" for part in PARTS)
    words = f"{_time(steps['step_ms'])}: {own}"
    adding, sending = (steps[part] for part in DAEMONS)
    if adding or sending:
        words += f"; meanwhile in the daemon: adding {_percent(adding)}, sending {_percent(sending)}"
    return words


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _time(step_ms: float) -> str:
    return f"{step_ms:.2g} ms" if step_ms < 10 else f"{numerals.grouped(step_ms)} ms"
