"""Commands on other machines, by the system's own `ssh` alone: its configuration, keys and agent."""

from __future__ import annotations

import shlex
import threading
from dataclasses import dataclass
from typing import Final

from p2psgd.base.bounded_command import CommandFailed, run_bounded

OUTPUT_BYTES_MAX: Final = 1024 * 1024
CONNECT_S: Final = 10
SSH_FAILED: Final = 255  # its own exit code, if it reaches no machine or is refused there


class RemoteError(Exception):
    """A command on a machine failed; the message is for that machine's line of the table. `unreachable`: ssh
    itself did, and nothing was changed there.
    """

    def __init__(self, words: str, *, unreachable: bool = False) -> None:
        super().__init__(words)
        self.unreachable = unreachable


@dataclass(frozen=True)
class Remote:
    """A machine as ssh knows it. `program`: ssh and its options, as a person has given them."""

    host: str
    program: tuple[str, ...]

    def run(
        self,
        script: str,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        root: bool = False,
        stop: threading.Event | None = None,
    ) -> str:
        """Run a shell script there and return what it prints; RemoteError if it fails. `root`: by sudo
        without a password, unless the user is root. `stop`: ssh is killed once it is set.
        """
        # BatchMode: ssh asks nothing, since many run at once and none of them has the terminal.
        options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")
        if root:
            script = f'[ "$(id -u)" = 0 ] || exec sudo -n sh -c {shlex.quote(script)}\n{script}'
        command = [*self.program, *options, "--", self.host, f"sh -c {shlex.quote(script)}"]
        try:
            out = run_bounded(
                command, timeout_s=timeout_s, bytes_max=OUTPUT_BYTES_MAX, stdin=stdin, stop=stop
            )
        except CommandFailed as error:
            raise RemoteError(str(error), unreachable=error.code == SSH_FAILED or error.missing) from None
        return out.decode(errors="replace")
