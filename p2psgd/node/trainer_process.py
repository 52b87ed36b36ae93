"""The process of the daemon's own trainer: started, supervised, and started again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from typing import Final

from p2psgd.base.aio import raise_failure
from p2psgd.base.errors import FINAL, MEETING, STORE, ExitCode, UsageError, words_of
from p2psgd.node.trainer_output import TrainerOutput, last_words, without_launcher

# ----------------------------------------------------------------------------
# Crashes of a trainer, counted: when it is started again, and when that is not worth another try.


FIRST_DELAY_S: Final = 1.0  # before a crashed trainer is started again; doubled by every crash,
DELAY_MAX_S: Final = 60.0  # up to this,
STEADY_S: Final = 30.0  # unless it had trained for so long, from its first mini-batch on
ALIKE_MAX: Final = 2  # exits in a row with the same code and words, and less training than that in between;
CRASHES_MAX: Final = 10  # in a row of any kind, without as much; after signals, without a mini-batch
MISSING: Final = "ModuleNotFoundError: "  # how Python begins the last line of a script that lacks a package
REFUSED: Final = f"{UsageError.__module__}.{UsageError.__qualname__}: "  # the same of what p2psgd refuses
NOT_RUN: Final = frozenset({2, 126, 127})  # wrong usage, or no such script; a shell cannot execute or find it
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")


class Crashes:
    """The crashes of one trainer command; `words` describe the last one."""

    def __init__(self) -> None:
        self.words = ""
        self._code = 0
        self._like = ""  # the words without their numbers
        self._in_a_row = 0
        self._alike = 0
        self._delay_s = FIRST_DELAY_S

    def count(self, code: int, reason: str, *, trained_s: float | None) -> float:
        """Count a crash, and return the seconds until the restart. The process had trained for `trained_s`
        since its first mini-batch; None if there was none. `code` as asyncio has it: negative for a signal.
        """
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        said = ": " if code > 0 else "; it said last: "  # whoever is killed does not say why
        self.words = f"the trainer crashed ({how}){said + reason if reason else ''}"
        like, steady = _NUMBERS.sub("0", reason), trained_s is not None and trained_s >= STEADY_S
        same = (code, like) == (self._code, self._like)
        if code > 0 and (STORE in reason or MEETING in reason):  # what was missing may come at any time
            self._in_a_row = self._alike = 0
        else:
            progressed = steady or (code < 0 and trained_s is not None)
            self._in_a_row = 1 if progressed else self._in_a_row + 1
            if steady or code < 0 or code == ExitCode.TEMPORARY:  # the cause may pass
                self._alike = 0
            else:
                self._alike = self._alike + 1 if same else 1
        self._code, self._like = code, like
        delay_s = FIRST_DELAY_S if steady else self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_MAX_S)
        return delay_s

    def give_up(self) -> tuple[str, ExitCode] | None:
        """Return a sentence and the exit code, if another try is not worth it; None if it is."""
        code = ExitCode.INTERNAL if self._code == ExitCode.INTERNAL else ExitCode.TRAINER
        if self._alike >= ALIKE_MAX:
            return f"{self.words}; twice alike, with less than {STEADY_S:.0f} s of training in between", code
        if self._in_a_row >= CRASHES_MAX:
            passing = self._code < 0 or self._code == ExitCode.TEMPORARY
            return f"{self.words}; {self._in_a_row} times in a row", ExitCode.TEMPORARY if passing else code
        return None


def signal_of(code: int) -> int:
    """Return an exit code as asyncio has it: a shell adds 128 to the signal that has killed its command."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def what_to_mend(code: int, reason: str, *, came: bool) -> tuple[str, ExitCode] | None:
    """Return the sentence and the exit code, if the trainer ended for what a person must repair;
    None else. `came`: a trainer has attached, at any time.
    """
    if code in FINAL:
        return reason or f"the trainer ended with exit code {code}", ExitCode(code)
    if code in NOT_RUN and not came:
        words = f"the trainer cannot run (exit code {code})"
        return f"{words}: {reason}" if reason else words, ExitCode.CONFIGURATION
    if code == 1 and reason.startswith(MISSING):
        words = reason.removeprefix(MISSING).replace("No module", "no module", 1)
        advice = "" if "." in words else "; install it where the trainer's Python finds it"
        return f"the trainer cannot run: {words}{advice}", ExitCode.CONFIGURATION
    if code == 1 and reason.startswith(REFUSED):
        return reason.removeprefix(REFUSED), ExitCode.DATA
    return None


# ----------------------------------------------------------------------------
# The daemon's own trainer: started with the daemon, started again when it crashes, never left behind.
#
# Exit 0 means that it is done, and an exit code that says the user must act (usage, data, configuration,
# permission), a command that cannot run, a package that is not installed, or a UsageError in a user's own
# script, is passed on instead of being tried again. Anything else is a crash: the trainer is started again,
# its residual still in the daemon's segment, after a second, or the longer the sooner it has crashed again
# and again. The second exit in a row with the same words is final: it is a bug in the script. Of others, and
# of signals, so is a limited number. What may be back at any time is waited for without an end: the store of
# its data, and a machine of torchrun's job (see Crashes).


STOP_TIMEOUT_S: Final = 10.0
READ_BYTES: Final = 16 * 1024  # of output in one turn of the loop: 5 ms for lines of 50 bytes
PROGRESS_EVERY_S: Final = 0.5

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

        The output of a Python script comes as it is printed (PYTHONUNBUFFERED), unless the user has set that.
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
        self._environment = {"PYTHONUNBUFFERED": "1", **os.environ, **environment}
        self._progress = progress
        self._came = came
        self._crashed = crashed
        self._ended = ended
        self._failed = failed
        self._process: asyncio.subprocess.Process | None = None
        self.running = False  # the command, or its output has not been read to the end
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._finishing = False
        self._beginning_again = False

    def start(self) -> None:
        """Start the trainer; returns at once."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="trainer")
        self._task.add_done_callback(raise_failure)

    @property
    def restart_in_s(self) -> float:
        """Return the seconds until a trainer that has crashed is started again; 0 if none waits for that."""
        return 0.0 if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())

    def finish(self) -> None:
        """Do not start the trainer again, however it ends: it was asked to end."""
        self._finishing = True
        self._hurried.set()

    async def wait(self, limit_s: float) -> None:
        """Wait until the trainer has ended, for `limit_s` seconds at most."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=limit_s)

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

    def begin_again(self, words: str) -> None:
        """End the trainer for this reason and start it again, which does not count as a crash."""
        if self._process is None or self._process.returncode is not None or self._beginning_again:
            return
        self._beginning_again, self.words = True, words
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_TIMEOUT_S, self._kill_if, self._process)

    def _kill_if(self, process: asyncio.subprocess.Process) -> None:
        if process is self._process:
            self.kill()

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
            output = TrainerOutput()
            try:
                self.running = True
                code, trained_s = await self._run_once(output)
            except OSError as error:
                words = f"cannot start the trainer {self._arguments[0]!r}: {words_of(error)}"
                self._failed(words, ExitCode.CONFIGURATION)
                return
            finally:
                self.running = False
            again, self._beginning_again = self._beginning_again, False
            if self._stopping or (code == 0 and not again) or (code <= 0 and self._finishing):
                self.words = ""
                self._ended()
                return
            if again:  # however it has ended: a script may end well at SIGTERM
                await self._wait(FIRST_DELAY_S)
                if self._finishing:
                    self._ended()
                    return
                continue
            lines, code = without_launcher(output.last_lines, code)
            reason = last_words(lines, code)
            if (mend := what_to_mend(code, reason, came=self._came())) is not None:
                self._failed(*mend)
                return
            delay_s = crashes.count(code, reason, trained_s=trained_s)
            self.words = crashes.words
            if not self._finishing and (final := crashes.give_up()) is not None:
                self._failed(*final)
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

    async def _run_once(self, output: TrainerOutput) -> tuple[int, float | None]:
        """Run the trainer once; return its exit code, negative for a signal, and for how many seconds it had
        trained since its first mini-batch; None without one.
        """
        before = self._progress()
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=READ_BYTES,
        )
        if self._stopping:
            self._signal(signal.SIGTERM)
        assert self._process.stdout is not None
        loop = asyncio.get_running_loop()
        reader = loop.create_task(_pass_on(self._process.stdout, output))
        exited = loop.create_task(self._process.wait())
        trained_from: float | None = None
        while not exited.done():
            await asyncio.wait([exited], timeout=PROGRESS_EVERY_S if trained_from is None else None)
            if trained_from is None and self._progress() > before:
                trained_from = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has started and left behind
        done, _ = await asyncio.wait([reader], timeout=1.0)  # a grandchild may still hold the pipe
        if not done:
            reader.cancel()
            await asyncio.wait([reader])
        _log_lines(output.end())
        return signal_of(exited.result()), None if trained_from is None else time.monotonic() - trained_from


async def _pass_on(stream: asyncio.StreamReader, output: TrainerOutput) -> None:
    """Copy the trainer's output into the daemon's log, line by line."""
    while data := await stream.read(READ_BYTES):
        _log_lines(output.feed(data, time.monotonic()))
        await asyncio.sleep(0)  # a read of what is there already does not give way to others


def _log_lines(lines: list[str]) -> None:
    for line in lines:
        log.info("%s", line, extra={"output": True})
