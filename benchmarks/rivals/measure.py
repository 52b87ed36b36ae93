"""Runs a case, watches its loss, and sums up what its hosts did."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.pages import commit
from benchmarks.rivals.cases import FAULTY, HOSTS, KILL_AFTER_S, SLOWED, Case, Evaluate, Setting, Task
from benchmarks.rivals.figures import Note, NotesFile, Point, computing, crossing, pause, rate, steps_at
from benchmarks.rivals.hosts import Place, bytes_sent, places, share_processors
from benchmarks.rivals.job import GO
from benchmarks.rivals.starting import start

START_S: Final = 90.0
LOOK_EVERY_S: Final = 0.1
DIVERGED: Final = 50.0  # a loss from which nothing comes back; a NaN counts as it
WATCHED_S: Final = 30.0  # after a kill at least: whoever waits for the dead host has noticed by then
SETTLING_S: Final = 2.0  # not counted in the time of a step: buffers grow, PowerSGD begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`target_s` None: not reached in `ran_s`. `samples` until then, of all hosts. Step and bytes: of a host
    for each of its mini-batches, the faulty host left out, and None if there were none; `steps_per_s` by
    host. `pauses_s` of the hosts that lived on: the longest of each after the kill, None where there was no
    mini-batch more. `words`: the last ones of a host that ended, which should not have.
    `load`: of the machine, before it began; `commit`: of this project. `computing`: the part of the time in
    which those hosts computed, where they count it.
    """

    setting: dict[str, Any]
    target: float
    target_s: float | None
    ran_s: float
    samples: float
    bytes_sent: int
    step_s: float | None
    step_bytes: float
    steps_per_s: list[float]
    curve: list[list[float]]  # seconds, samples, loss
    pauses_s: list[float | None]
    words: str
    load: float
    commit: str
    computing: float | None = None

    @property
    def loss(self) -> float:
        """The last one."""
        return self.curve[-1][2] if self.curve else DIVERGED

    @property
    def failure(self) -> str:
        """Say why the target would not have been reached with more time; empty if that is not known."""
        if self.target_s is not None:
            return ""
        if self.loss >= DIVERGED:
            return "diverged"
        return "hosts ended" if self.words else ""

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept, without `computing` where it was not counted."""
        fields = asdict(self)
        if self.computing is None:
            del fields["computing"]
        return fields


def measure(task: Task, case: Case, setting: Setting, directory: Path, *, hosts: int = HOSTS) -> Outcome:
    """In that directory, which must not be on a disk that hosts would wait for."""
    load, loss_of = os.getloadavg()[0], task.evaluation()
    with places(hosts, mbit=case.mbit, delay_ms=case.delay_ms) as all_places:
        start(task, case, setting, all_places, directory)
        _await_ready(all_places, directory)
        begin = time.monotonic() + 0.3
        share_processors(all_places, {FAULTY: SLOWED} if case.fault == "slow" else {})
        sent = bytes_sent(all_places)
        unfinished = directory / "go.part"
        unfinished.write_text(f"{begin:.6f}")
        os.replace(unfinished, directory / GO)
        watch = Watch(task, case, directory, loss_of=loss_of, begin=begin, hosts=hosts)
        watch.until_done(all_places)
        ran_s = time.monotonic() - begin
        sent = bytes_sent(all_places) - sent
        words = _last_words(all_places, directory) if watch.ended else ""
        for place in all_places:
            place.kill()
        return watch.outcome(setting, ran_s=ran_s, sent=sent, words=words, load=load)


class Watch:
    """Evaluates weights as they come, and kills the host that is to die."""

    def __init__(
        self, task: Task, case: Case, directory: Path, *, loss_of: Evaluate, begin: float, hosts: int
    ) -> None:
        self._task, self._case, self._directory, self._begin = task, case, directory, begin
        self._loss_of = loss_of
        self._files = [notes_file(directory, host, begin) for host in range(hosts)]
        self._points: list[Point] = []
        self._snapshot: Path | None = None  # the last one: torchrun's processes go on from it
        self._killed_s: float | None = None
        self.ended = False  # a host did, that should not have

    def until_done(self, all_places: Sequence[Place]) -> None:
        """The target is reached, or the time is over, or all hosts that live on have ended."""
        fatal = self._case.fault == "killed"
        while (now := time.monotonic() - self._begin) < self._case.limit_s:
            if fatal and self._killed_s is None and now >= KILL_AFTER_S:
                all_places[FAULTY].kill()
                self._killed_s = time.monotonic() - self._begin
            self._evaluate()
            if self._over() and (not fatal or (self._killed_s and now >= self._killed_s + WATCHED_S)):
                return
            living = [place for place in all_places if not (fatal and place.number == FAULTY)]
            ends = [place.ended() for place in living]
            self.ended = all(ends) if fatal else any(ends)
            if self.ended:
                self._evaluate()
                return
            time.sleep(LOOK_EVERY_S)

    def _over(self) -> bool:
        diverged = bool(self._points) and self._points[-1].loss >= DIVERGED
        return diverged or crossing(self._points, self._task.target) is not None

    def _evaluate(self) -> None:
        new = [note for file in self._files for note in file.look() if note.snapshot]
        for note in sorted(new, key=lambda each: each.at):
            path = self._directory / note.snapshot
            loss = self._loss_of(np.fromfile(path, np.float32))
            self._points.append(Point(note.at, 0.0, loss if loss < DIVERGED else DIVERGED))
            if self._snapshot not in (None, path):
                self._snapshot.unlink()
            self._snapshot = path

    def outcome(self, setting: Setting, *, ran_s: float, sent: int, words: str, load: float) -> Outcome:
        for file in self._files:
            file.look()  # what was noted while the last snapshots were evaluated
        notes, killed_s = [file.notes for file in self._files], self._killed_s

        def samples_at(at: float) -> float:
            return self._task.batch * sum(steps_at(each, at) for each in notes)

        def pauses(notes: Sequence[Note]) -> float | None:
            assert killed_s is not None
            return None if self.ended else pause(notes, killed_s, ran_s)

        points = [Point(each.at, samples_at(each.at), each.loss) for each in self._points]
        reached = crossing(points, self._task.target)
        sound = [host for host in range(len(notes)) if not self._case.is_faulty(host)]
        paces = [rate(each, SETTLING_S, ran_s) for each in notes]
        made = samples_at(ran_s) / self._task.batch
        parts = [computing(notes[host], SETTLING_S, ran_s) for host in sound]
        counted = [part for part in parts if part is not None]
        pace = sum(paces[host] for host in sound) / len(sound)
        return Outcome(
            setting=dict(setting),
            target=self._task.target,
            target_s=reached.at if reached else None,
            ran_s=ran_s,
            samples=reached.samples if reached else samples_at(ran_s),
            bytes_sent=sent,
            step_s=1 / pace if pace else None,
            step_bytes=sent / made if made else 0.0,
            steps_per_s=paces,
            curve=[[round(each.at, 3), round(each.samples), round(each.loss, 4)] for each in points],
            pauses_s=[] if killed_s is None else [pauses(notes[host]) for host in sound],
            words=words,
            load=load,
            commit=commit(),
            computing=sum(counted) / len(counted) if counted else None,
        )


def notes_file(directory: Path, host: int, begin: float) -> NotesFile:
    """Return the notes file of that host."""
    return NotesFile(directory / f"host-{host}.notes", begin)


def _await_ready(all_places: Sequence[Place], directory: Path) -> None:
    deadline = time.monotonic() + START_S
    files = [notes_file(directory, place.number, 0.0) for place in all_places]
    while not all(file.ready for file in files):
        for file in files:
            file.look()
        ended = [place for place in all_places if place.ended()]
        assert not ended, _last_words(ended, directory)
        assert time.monotonic() < deadline, f"not ready in {START_S:.0f} s"
        time.sleep(LOOK_EVERY_S)


def _last_words(all_places: Sequence[Place], directory: Path) -> str:
    """The last line of the first host that has ended."""
    for place in all_places:
        if place.ended():
            log = directory / f"host-{place.number}.trainer.log"
            text = log.read_text(errors="replace")
            # What torchrun writes ends with a line of ====.
            lines = [line for line in text.splitlines() if re.search("[a-z]", line)]
            return lines[-1][:400] if lines else "ended without a word"
    return ""
