"""Run a daemon for one script that trains without others, as under a debugger or in a notebook.

It is a real node, the only one of its run, so that everything is as it is among many: attach, rounds, the
residual, restarts of the link. It is a child of the script, and ends with it, whatever the cause.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from p2psgd.base.errors import TrainerError

ALONE: Final = "P2PSGD_ALONE"
STOP_LIMIT_S: Final = 10.0  # then it is killed
# -P: modules in the working directory are none of the daemon's business. A script that is killed leaves its
# daemon's state to the daemon.
PROGRAM: Final = ("-P", "-m", "p2psgd.cli.child")


def wants_alone(
    alone: bool | None, control: object = None, environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether a script trains without others: what it says itself, else $P2PSGD_ALONE.

    Raises:
        TrainerError: a daemon is named as well, as in every script that a daemon has started; or the variable
            is neither 0 nor 1.
    """
    value = environment.get(ALONE, "")
    if value not in ("", "0", "1"):
        raise TrainerError(f"{ALONE} is {value!r:.100}: set it to 1 to train in this process alone, or to 0")
    wanted = value == "1" if alone is None else alone
    named = "control=..." if control is not None else "P2PSGD_CONTROL"
    if wanted and (control is not None or environment.get("P2PSGD_CONTROL")):
        how = f"{ALONE}=1" if alone is None else "attach(alone=True)"
        raise TrainerError(
            f"{how} is for a script without a daemon, and {named} names one; in a script that a daemon has"
            " started it always does. Leave one of them out"
        )
    return wanted


class OwnDaemon:
    """The daemon of a script that trains alone; `close` ends it, and so does the end of the script."""

    def __init__(self) -> None:
        self._script = os.getpid()
        self.state = Path(tempfile.mkdtemp(prefix="p2psgd-alone-"))
        self._log = self.state / "log.txt"
        # All of 127.0.0.0/8 is this machine, so a chosen address is as good as a port of one's own.
        address = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}:7315"
        hosts = self.state / "hosts.txt"
        hosts.write_text(f"{address}\n", encoding="utf-8")
        command = [sys.executable, *PROGRAM, str(self._script), str(self.state)]
        command += ["node", "--name", "alone"]
        command += ["--peers", str(hosts), "--listen", address, "--state", str(self.state)]
        command += ["--log-format", "text"]
        command += ["--failure-timeout", "0.5"]  # for which a node looks for others at its start
        environment = {name: value for name, value in os.environ.items() if not name.startswith("P2PSGD_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl+C is for the script
            )

        atexit.register(self.close)

    def check(self) -> None:
        """Raise TrainerError, with its last line, if it has ended by itself."""
        if self._process.poll() is not None:
            lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "")
            raise TrainerError(f"the daemon of this script has ended: {last.removeprefix('p2psgd: '):.300}")

    def close(self) -> None:
        """End it, and delete its state; harmless a second time, and in a fork of the script."""
        if os.getpid() != self._script:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.state, ignore_errors=True)
        atexit.unregister(self.close)
