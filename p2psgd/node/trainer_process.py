"""The process of the daemon's own trainer: started, supervised, and started again after a crash."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable
from typing import Final

from p2psgd.base.aio import raise_failure
from p2psgd.base.errors import STORE, ExitCode, UsageError, words_of

# ----------------------------------------------------------------------------
# Crashes of a trainer, counted: when it is started again, and when that is not worth another try.


FIRST_DELAY_S: Final = 1.0  # before a crashed trainer is started again; doubled by every crash,
DELAY_MAX_S: Final = 60.0  # up to this,
STEADY_S: Final = 30.0  # unless it had run for so long
CRASHES_MAX: Final = 10  # in a row, without a mini-batch, or of the same kind and sooner than STEADY_S
ABSENT_CRASHES_MAX: Final = 4  # in a row with the same words, while no trainer has ever attached,
QUICK_S: Final = 2.0  # of lives that were shorter than this: it is the command that is wrong
MISSING: Final = "ModuleNotFoundError: "  # how Python begins the last line of a script that lacks a package
REFUSED: Final = f"{UsageError.__module__}.{UsageError.__qualname__}: "  # the same of what p2psgd refuses
FINAL: Final = frozenset({ExitCode.USAGE, ExitCode.DATA, ExitCode.PERMISSION, ExitCode.CONFIGURATION})


class Crashes:
    """The crashes of one trainer command; `words` describe the last one."""

    def __init__(self) -> None:
        self.words = ""
        self._in_a_row = 0
        self._alike = 0
        self._delay_s = FIRST_DELAY_S

    def count(self, code: int, last_line: str, *, lived_s: float, progressed: bool) -> float:
        """Count a crash, and return the seconds until the restart. The process ran for `lived_s`, and has
        `progressed` if there was a mini-batch. `code` as asyncio has it: negative for a signal.
        """
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        said = ": " if code > 0 else "; it said last: "  # whoever is killed does not say why
        words = f"the trainer crashed ({how}){said + last_line if last_line else ''}"
        steady, same = lived_s >= STEADY_S, code > 0 and words == self.words
        if code > 0 and STORE in last_line:  # it may be back at any time
            self._in_a_row = self._alike = 0
        else:
            self._in_a_row = 1 if progressed and (steady or not same) else self._in_a_row + 1
            self._alike = self._alike + 1 if same and lived_s < QUICK_S else 1
        delay_s = FIRST_DELAY_S if steady else self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_MAX_S)
        self.words = words
        return delay_s

    def give_up(self, *, came: bool) -> str:
        """Return why another try is not worth it; "" if it is. `came`: a trainer has attached, at
        any time.
        """
        if self._alike >= ABSENT_CRASHES_MAX and not came:
            return f"{self.words}; {self._alike} times in a row, without ever attaching to this node"
        if self._in_a_row >= CRASHES_MAX:
            return f"{self.words}; {self._in_a_row} times in a row"
        return ""


def what_to_mend(code: int, last_line: str) -> tuple[str, ExitCode] | None:
    """Return the sentence and the exit code, if the trainer ended for what a person must repair;
    None else.
    """
    if code in FINAL:
        return last_line or f"the trainer ended with exit code {code}", ExitCode(code)
    if code == 1 and last_line.startswith(MISSING):
        words = last_line.removeprefix(MISSING).replace("No module", "no module", 1)
        advice = "install it where the trainer's Python finds it"
        return f"the trainer cannot run: {words}; {advice}", ExitCode.CONFIGURATION
    if code == 1 and last_line.startswith(REFUSED):
        return last_line.removeprefix(REFUSED), ExitCode.DATA
    return None


# ----------------------------------------------------------------------------
# The daemon's own trainer: started with the daemon, started again when it crashes, never left behind.
#
# Exit 0 means that it is done, and an exit code that says the user must act (usage, data, configuration,
# permission), a package that is not installed, or a UsageError in a user's own script, is passed on instead
# of being tried again. Anything else is a crash: the trainer is started again, its residual still in the
# daemon's segment, after a second, or the longer the sooner it has crashed again and again; only a limited
# number of times in a row, unless it is the store of its data that fails, which may be back at any time (see
# Crashes).


STOP_TIMEOUT_S: Final = 10.0
LINE_BYTES_MAX: Final = 64 * 1024

log = logging.getLogger("p2psgd.trainer")


class Supervisor:
    """A supervisor that keeps one trainer command running until it is done, given up, or stopped."""

    def __init__(
        self,
        command: str,
        *,
        environment: dict[str, str],
        progress: Callable[[], int],
        came: Callable[[], bool],
        crashed: Callable[[str], None],
        ended: Callable[[], None],
        failed: Callable[[str, ExitCode], None],
    ) -> None:
        """Take the callbacks. `progress` counts mini-batches; `came`: whether a trainer has ever attached.
        `crashed` is called for every crash after which it is started again; `ended` is called when the
        trainer is done, `failed` with a sentence when it is not worth another try.
        """
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise UsageError(
                f"--trainer {command!r:.200} is not a command line: {str(error).lower()}"
            ) from None
        if not self._arguments:
            raise UsageError(
                "--trainer is empty: give the command that trains, such as 'p2psgd train --recipe speech'"
            )
        self.restarts = 0
        self.words = ""
        self._restart_at: float | None = None  # monotonic, while one that has crashed is not started again
        self._hurried = asyncio.Event()  # nothing is waited for any more
        self._environment = {**os.environ, **environment}
        self._progress = progress
        self._came = came
        self._crashed = crashed
        self._ended = ended
        self._failed = failed
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._finishing = False

    def start(self) -> None:
        """Start the trainer; returns at once."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="trainer")
        self._task.add_done_callback(raise_failure)

    @property
    def running(self) -> bool:
        """Return whether the command runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def restart_in_s(self) -> float:
        """Return the seconds until a trainer that has crashed is started again; 0 if none waits for that."""
        return 0.0 if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())

    def finish(self) -> None:
        """Do not start the trainer again, however it ends: it was asked to end."""
        self._finishing = True
        self._hurried.set()

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to what is left of its process group."""
        self._stopping = True
        self._hurried.set()
        if self._task is None:
            return
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=STOP_TIMEOUT_S)
        if not done:
            log.warning("the trainer did not stop within %.0f s: killed", STOP_TIMEOUT_S)
            self.kill()
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """Send SIGKILL to the trainer's process group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # While it has not been waited for, its process group cannot be somebody else's.
        if self._process is not None and self._process.returncode is None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._process.send_signal(number)

    async def _run(self) -> None:
        crashes = Crashes()
        while not self._stopping:
            before, began = self._progress(), time.monotonic()
            try:
                code, last_line = await self._run_once()
            except OSError as error:
                words = f"cannot start the trainer {self._arguments[0]!r}: {words_of(error)}"
                self._failed(words, ExitCode.CONFIGURATION)
                return
            if code == 0 or self._stopping:
                self._ended()
                return
            if (mend := what_to_mend(code, last_line)) is not None:
                self._failed(*mend)
                return
            lived_s, progressed = time.monotonic() - began, self._progress() > before
            delay_s = crashes.count(code, last_line, lived_s=lived_s, progressed=progressed)
            self.words = crashes.words
            if not self._finishing and (why := crashes.give_up(came=self._came())):
                self._failed(why, ExitCode.INTERNAL)
                return
            await self._wait(delay_s)
            if self._finishing:
                self._ended()
                return

    async def _wait(self, delay_s: float) -> None:
        """Wait before the trainer is started again; not if it was asked to end, or as soon as it is."""
        if self._hurried.is_set():
            return
        self.restarts += 1
        words = f"{self.words}; started again in {delay_s:.0f} s"
        log.warning("%s", words)
        self._crashed(words)
        self._restart_at = time.monotonic() + delay_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._hurried.wait()
        self._restart_at = None

    async def _run_once(self) -> tuple[int, str]:
        """Run the trainer once; return its exit code and last line of output."""
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        if self._stopping:
            self._signal(signal.SIGTERM)
        assert self._process.stdout is not None
        lines = collections.deque[str](maxlen=1)
        reader = asyncio.get_running_loop().create_task(_pass_on(self._process.stdout, lines))
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has started and left behind
        done, _ = await asyncio.wait([reader], timeout=1.0)  # a grandchild may still hold the pipe
        if not done:
            reader.cancel()
            await asyncio.wait([reader])
        return code, lines[-1].removeprefix("p2psgd: ") if lines else ""


async def _pass_on(stream: asyncio.StreamReader, lines: collections.deque[str]) -> None:
    """Copy the trainer's output into the daemon's log, line by line."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the limit: what is left of it comes as the next line
            continue
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            lines.append(text)
            log.info("%s", text, extra={"unlimited": True})
