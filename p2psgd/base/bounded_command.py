"""A command that another program runs for its answer: with a limit on its time and on what it may write.

It runs in a session of its own, so that all of its processes can be killed when it is late. What it writes on
standard error is for the sentence that says why it has failed, and only the end of that is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

from p2psgd.base.errors import words_of

READ_BYTES: Final = 64 * 1024
STOP_LOOK_S: Final = 0.5  # from one look at `stop` to the next
ERROR_BYTES_MAX: Final = 4096  # kept of standard error
WORDS_MAX: Final = 200  # of its last line
SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})  # of what a start needs


class CommandFailed(Exception):
    """A command gave no answer; the message says why, as the end of a sentence about it.

    `missing`: it does not exist, or may not be executed, so that another try is of no use; `code`: its exit
    code, if it had one.
    """

    def __init__(self, words: str, *, missing: bool = False, code: int | None = None) -> None:
        super().__init__(words)
        self.missing = missing
        self.code = code


def run_bounded(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    bytes_max: int,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    stop: threading.Event | None = None,
) -> bytes:
    """Run a command and return what it writes on standard output.

    Args:
        arguments: The program and its arguments; no shell is involved.
        timeout_s: Seconds after which it is killed, with all that it has started.
        bytes_max: Bytes of output beyond which it is killed.
        environment: Its environment; None for that of this process.
        stdin: What it may read on standard input, which it gets from memory and never from a disk.
        stop: It is killed, half a second later at most, once this is set.

    Raises:
        CommandFailed: it cannot run, fails, is late, is stopped, or writes too much.
    """
    try:
        with open(os.memfd_create("stdin"), "r+b") as given:
            given.write(stdin)
            given.seek(0)
            process = subprocess.Popen(
                arguments,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        missing = error.errno not in SHORT
        raise CommandFailed(f"cannot run: {words_of(error)}", missing=missing) from None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_s
    try:
        streams = process.stdout, process.stderr
        out, said = _read(*streams, deadline=deadline, bytes_max=bytes_max, stop=stop or threading.Event())
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it has not been waited for, so the number is its own
        process.wait()
        if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
            raise CommandFailed(f"was not done within {timeout_s:g} s") from None
        raise
    finally:
        process.stdout.close()
        process.stderr.close()
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CommandFailed(f"{how}{last_line(said)}", missing=code in (126, 127), code=code)
    return out


def last_line(said: bytes) -> str:
    """Return the last line that a command wrote, with a colon before it; empty if there is none."""
    lines = said.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {''.join(filter(str.isprintable, last))[:WORDS_MAX]}" if last else ""


def _read(
    out: IO[bytes], error: IO[bytes], *, deadline: float, bytes_max: int, stop: threading.Event
) -> tuple[bytes, bytes]:
    """Read both to their ends; TimeoutError at the deadline, CommandFailed at `stop` or if it is too much."""
    written, said = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream in (out, error):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if stop.is_set():
                raise CommandFailed("was stopped")
            for key, _ in selector.select(min(left_s, STOP_LOOK_S)):
                block = os.read(key.fd, READ_BYTES)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is error:
                    said = (said + block)[-ERROR_BYTES_MAX:]
                else:
                    written += block
                    if len(written) > bytes_max:
                        raise CommandFailed(f"wrote more than {bytes_max} bytes")
    return bytes(written), bytes(said)
