"""Keep all searches and measurements of a task in its JSON file, so that a cut-off table goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.pages import processor
from benchmarks.rivals.cases import Case, Setting, Task, Way
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.starting import RIVALS_PYTHON

NOT_INSTALLED: Final = "not installed"
AS_GOOD: Final = 1.05  # of the shortest time


@dataclass(slots=True)
class Results:
    """`search`: by way, what each of its settings took, as Outcome has it; `runs`: by the case's name.
    `why_not`: by way, a sentence, where it cannot run; `failed`: the same of a run of this bench that failed
    when it was last tried.
    """

    task: Task
    machine: dict[str, str] = field(default_factory=dict)
    search: dict[str, list[Outcome]] = field(default_factory=dict)
    runs: dict[str, Outcome] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, task: Task, path: Path | None = None) -> Self:
        """Read the results of a task, from its own file unless another is named; empty if there is no file.
        Those of ways that are gone, or of another target, are not kept.
        """
        path = path or task.data
        if not path.exists():
            return cls(task)
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            task,
            fields["machine"],
            {
                name: [Outcome(**each) for each in found if each["target"] == task.target]
                for name, found in fields["search"].items()
                if name in task.ways
            },
            {
                name: Outcome(**each)
                for name, each in fields["runs"].items()
                if name.split()[0] in task.ways and each["target"] == task.target
            },
            fields["why_not"],
            fields["failed"],
        )

    def write(self, path: Path | None = None) -> None:
        """A line for each outcome, into the task's own file unless another is named."""
        path = path or self.task.data
        search = {name: [each.as_dict() for each in found] for name, found in self.search.items()}
        runs = {name: each.as_dict() for name, each in self.runs.items()}
        parts = {
            "machine": json.dumps(self.machine),
            "why_not": json.dumps(self.why_not),
            "failed": json.dumps(self.failed),
            "search": _lines({name: _list(found) for name, found in search.items()}),
            "runs": _lines({name: json.dumps(each) for name, each in runs.items()}),
        }
        unfinished = path.with_suffix(".part")
        unfinished.write_text(_lines(parts) + "\n", encoding="utf-8")
        os.replace(unfinished, path)

    def of_another_machine(self, here: Mapping[str, str]) -> str:
        """A sentence, if there are figures and they were taken elsewhere or with other versions: those of a
        table are to be of one place.
        """
        other = [
            name
            for name in {**self.machine, **here}
            if self.machine.get(name) not in (here.get(name), NOT_INSTALLED)
        ]
        if not other or not (self.search or self.runs):
            return ""
        was, now = (
            ", ".join(f"{name} {words.get(name)}" for name in other) for words in (self.machine, here)
        )
        return f"{self.task.data} was measured with {was}, and here is {now}: remove it to measure all anew"

    def tried(self, way: Way, setting: Setting) -> Outcome | None:
        """Return the search's result for one setting."""
        found = (each for each in self.search.get(way.name, []) if each.setting == dict(setting))
        return next(found, None)

    def best(self, way: Way) -> Setting | None:
        """Return the first of the settings that reach the target fastest, or nearly so; where none reached
        it, that with the lowest loss. None if nothing was tried.
        """
        tried = [each for setting in way.settings if (each := self.tried(way, setting))]
        times = [each.target_s for each in tried if each.target_s is not None]
        if not times:
            return min(tried, key=lambda each: each.loss).setting if tried else None
        limit_s = AS_GOOD * min(times)
        return next(each.setting for each in tried if each.target_s and each.target_s <= limit_s)

    def needed(self, case: Case) -> bool:
        """Return whether to run this case: not if it was run with the best setting, nor where the way cannot
        run here, nor again with another seed, if the first did not reach the target.
        """
        first, own = self.runs.get(dataclasses.replace(case, seed=1).name), self.runs.get(case.name)
        pointless = case.seed > 1 and first is not None and first.target_s is None
        measured = own is not None and self.best(case.way) in (None, own.setting)
        return not (pointless or measured or case.way.name in self.why_not)

    def of(self, way: Way, mbit: int, fault: str = "") -> list[Outcome]:
        """Return the runs of all seeds."""
        return list(self._of(way, mbit, fault))

    def _of(self, way: Way, mbit: int, fault: str) -> Iterator[Outcome]:
        for name, outcome in self.runs.items():
            if name.rpartition(" ")[0] == Case(way, mbit, fault=fault).name.rpartition(" ")[0]:
                yield outcome


def surroundings() -> dict[str, str]:
    """Return what figures depend on beside the code of this project."""
    return {
        "processors": f"{len(os.sched_getaffinity(0))} x {processor()}",
        "python": platform.python_version(),
        "Linux": platform.release(),
        "numpy": metadata.version("numpy"),
        "torch": metadata.version("torch"),
        "hivemind": _hivemind(),
        "p2psgd": metadata.version("p2psgd"),
    }


def _hivemind() -> str:
    code = "from importlib import metadata; print(*map(metadata.version, ('hivemind', 'torch')))"
    try:
        done = subprocess.run([RIVALS_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NOT_INSTALLED
    version, torch = done.stdout.split()
    return f"{version} with torch {torch}"


def _lines(fields: Mapping[str, str]) -> str:
    """Return a JSON object of ready JSON texts, an entry in each line."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {words}" for name, words in fields.items()) + "\n}"


def _list(found: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(each) for each in found) + "\n]"
