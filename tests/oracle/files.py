"""Where the frozen data lie, how they are kept, and how they are compared."""

from __future__ import annotations

import difflib
import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FROZEN: Final = Path(__file__).parent / "frozen"
LIBRARIES: Final = ("numpy", "pydantic", "typer", "click", "rich")
MACHINE: Final = "machine"


def load(name: str) -> Any:
    """Return what was frozen under a name; an empty dict if nothing was."""
    path = FROZEN / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(name: str, data: Any) -> None:
    """Freeze data under a name."""
    FROZEN.mkdir(exist_ok=True)
    (FROZEN / f"{name}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def remember_machine(part: str) -> None:
    """Freeze with which versions a part was frozen."""
    save(MACHINE, {**load(MACHINE), part: _machine(part)})


def other_machine(part: str) -> str:
    """Return in what this machine differs from the one on which a part was frozen; empty if in nothing."""
    then, now = load(MACHINE).get(part, {}), _machine(part)
    keys = [key for key in now if now[key] != then.get(key)]
    return ", ".join(f"{key} {now[key]} instead of {then.get(key)}" for key in keys)


def _machine(part: str) -> dict[str, str]:
    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "C library": " ".join(platform.libc_ver()),
        **{name: version(name) for name in LIBRARIES},
    }
    return {**found, "processor": _processor()} if part == "ring" else found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )


def differences(place: str, frozen: Any, now: Any) -> Iterator[str]:
    """Yield a line for each thing that differs between two JSON values."""
    if isinstance(frozen, dict) and isinstance(now, dict):
        for key in sorted({*frozen, *now}):
            if key not in now:
                yield f"{place} {key}: is gone"
            elif key not in frozen:
                yield f"{place} {key}: is new"
            else:
                yield from differences(f"{place} {key}:", frozen[key], now[key])
    elif isinstance(frozen, list) and isinstance(now, list):
        lines = list(difflib.unified_diff(frozen, now, lineterm="", n=0))[2:]
        yield from (f"{place} {line}" for line in lines if not line.startswith("@@"))
    elif frozen != now:
        yield f"{place} {frozen} became {now}"
