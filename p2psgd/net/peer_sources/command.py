"""`exec:COMMAND`: what a command writes on standard output, in the form of hosts.txt.

A shell runs it, as it runs --trainer. It has COMMAND_S seconds and OUTPUT_BYTES_MAX bytes. People get to see
its first word alone, since the others may hold a password.
"""

from __future__ import annotations

from typing import Final

from p2psgd.base.bounded_command import CommandFailed, run_bounded
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address, parse_hosts
from p2psgd.net.peer_sources.source import PeerSource

COMMAND_S: Final = 10.0
OUTPUT_BYTES_MAX: Final = 1024 * 1024  # as much as a list of hosts may have


def from_command(command: str) -> PeerSource:
    """Return the source that runs this command whenever it is asked; UsageError if there is none."""
    if not command.strip():
        raise UsageError("--peers exec:COMMAND: the command is empty; give one that prints HOST[:PORT] lines")
    words = [word for word in command.split() if "=" not in word]  # TOKEN=... may stand before the program
    text = f"exec:{words[0] if words else ''} ..."

    def ask() -> tuple[Address, ...]:
        try:
            out = run_bounded(["/bin/sh", "-c", command], timeout_s=COMMAND_S, bytes_max=OUTPUT_BYTES_MAX)
            return parse_hosts(out.decode(), f"the output of {text:.100}")
        except CommandFailed as error:
            code = ExitCode.CONFIGURATION if error.missing else ExitCode.TEMPORARY
            raise UsageError(f"--peers {text:.100}: the command {error}", code) from None
        except UnicodeDecodeError:
            sentence = f"--peers {text:.100}: the command's output is not text"
            raise UsageError(sentence, ExitCode.CONFIGURATION) from None

    return PeerSource(text, ask, again=True)
