"""`FILE` or `file:FILE`: hosts.txt, one `host[:port]` a line; the same file may be copied to every node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address, parse_hosts
from p2psgd.net.peer_sources.source import PeerSource

FILE_BYTES_MAX: Final = 1024 * 1024
ADVICE: Final = (
    ": --peers takes the path of a file with one host[:port] a line, or a source, such as dns:NAME or"
    " env:VARIABLE"
)


def from_file(path: Path) -> PeerSource:
    """Return the source that reads this file, whose lines are in the same order on all nodes."""
    return PeerSource(str(path), lambda: read_hosts(path, ADVICE), ordered=True, names_file=True)


def read_hosts(path: Path, advice: str = "") -> tuple[Address, ...]:
    """Read the addresses in the file in its order, duplicates merged; UsageError that names the line
    otherwise, and if there is no such file ends with this `advice`.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a list of hosts?",
                ExitCode.CONFIGURATION,
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = (getattr(error, "strerror", None) or "it is not a text file").lower()
        words += "" if os.path.isfile(path) else advice
        sentence = f"cannot read the list of hosts {path.absolute()}: {words}"
        raise UsageError(sentence, ExitCode.CONFIGURATION) from None
    return parse_hosts(text, str(path))
