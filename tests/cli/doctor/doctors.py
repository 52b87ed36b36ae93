"""Real `p2psgd doctor` processes, as a person would run them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import DEADLINE_S
from tests.daemons import P2PSGD


@dataclass(frozen=True, slots=True)
class Report:
    """What a doctor printed with --json, and its exit code."""

    code: int
    data: dict[str, Any]
    complaints: str

    def of(self, check: str, grade: str) -> list[str]:
        """The sentences of that check and grade."""
        findings = self.data["findings"]
        return [each["words"] for each in findings if (each["check"], each["grade"]) == (check, grade)]

    @property
    def problems(self) -> list[str]:
        """All of them, with what mends each."""
        findings = [each for each in self.data["findings"] if each["grade"] == "problem"]
        assert all(each["mend"] for each in findings)
        return [f"{each['words']} -> {each['mend']}" for each in findings]

    def peer(self, address: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.data["peers"] if each["address"] == address)
        return found


class Doctor:
    """One process; `options` after --peers, if there are `hosts`, and --state."""

    def __init__(
        self, hosts: Path | None, state: Path, *options: str, within: list[str] | None = None
    ) -> None:
        command = [*(within or []), *P2PSGD, "doctor", "--json", "--state", str(state)]
        peers = [] if hosts is None else ["--peers", str(hosts)]
        self._process = subprocess.Popen(
            [*command, *peers, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def report(self) -> Report:
        out, complaints = self._process.communicate(timeout=DEADLINE_S)
        assert out, complaints
        return Report(self._process.returncode, json.loads(out), complaints)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def running(*doctors: Doctor) -> Iterator[None]:
    """None of them outlives the test."""
    try:
        yield
    finally:
        for doctor in doctors:
            doctor.end()


def write_hosts(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
