"""Part `cli`: the help of every command, and what becomes of wrong invocations.

Each command runs in a forked child, in a folder with a few files, without a terminal and without variables of
p2psgd: that takes milliseconds, where an interpreter of its own would take half a second.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import shlex
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import p2psgd
from tests.oracle.files import ROOT
from tests.oracle.invocations import FILES, INVOCATIONS
from tests.oracle.subject import EXIT_CODES

LIMIT_S: Final = 60  # a command that takes longer is killed: it waits for something
KILLED: Final = -1
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:[\d.]+(Z|[+-]\d\d:?\d\d)")
LISTED: Final = re.compile(r"^  ([a-z][a-z0-9-]*)  ", re.MULTILINE)
GROUP: Final = "COMMAND [ARGS]..."  # in the usage of one


def observe() -> dict[str, object]:
    """Return all that is frozen of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, text in FILES.items():
            (place / name).write_text(text)
        runner = Runner(place)
        helps = dict(_helps(runner, ()))
        return {
            "exit codes": dict(EXIT_CODES),
            "help": helps,
            "invocations": _invocations(runner),
        }


def _invocations(runner: Runner) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for words in INVOCATIONS:
        name = shlex.join(words)
        found[f"{name} (again)" if name in found else name] = _lines(*runner.run(words))
    return found


def _lines(code: int, text: str) -> list[str]:
    return [f"exit code {code}", *text.splitlines()]


def _helps(runner: Runner, command: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    code, text = runner.run((*command, "--help"))
    yield " ".join(("p2psgd", *command)), _lines(code, text)
    for name in LISTED.findall(text) if GROUP in text.partition("\n")[0] else ():
        yield from _helps(runner, (*command, name))


def _import_all() -> None:
    for module in pkgutil.walk_packages(p2psgd.__path__, "p2psgd.", onerror=lambda name: None):
        if not module.name.endswith(".__main__"):
            with contextlib.suppress(ImportError):  # of a library that is not there, such as CuPy
                importlib.import_module(module.name)


class Runner:
    """Runs `p2psgd` with any words in a folder."""

    def __init__(self, folder: Path) -> None:
        _import_all()  # here, once: a child would import much of it each time
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        module, _, function = project["scripts"]["p2psgd"].partition(":")
        self._main: Callable[[], object] = getattr(importlib.import_module(module), function)
        self._folder = folder

    def run(self, words: tuple[str, ...]) -> tuple[int, str]:
        """Return the exit code and all that was printed; KILLED after LIMIT_S."""
        with tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                os._exit(self._become(words, output.fileno()))
            _, status = os.waitpid(child, 0)
            output.seek(0)
            text = output.read().decode()
        code = os.waitstatus_to_exitcode(status)
        return (KILLED if code < 0 else code), TIME.sub("TIME", text.replace(str(self._folder), "FOLDER"))

    def _become(self, words: tuple[str, ...], output: int) -> int:
        signal.alarm(LIMIT_S)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(self._folder)
        path = os.environ["PATH"]
        os.environ.clear()
        home = str(self._folder)
        os.environ |= {"PATH": path, "HOME": home, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
        sys.argv = ["p2psgd", *words]
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8", write_through=True)
            for number, mode in enumerate(("r", "w", "w"))
        )
        try:
            self._main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as error:
            print(f"raised {error!r}")
            return 99
        return 0
