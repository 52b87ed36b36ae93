"""Finds the source that the words of --peers name: a scheme and its argument, or else a file.

A package adds a scheme by an entry point of the group `p2psgd.peers`: its name is the scheme, and it leads to
a function that takes the words after the colon and returns `host[:port]` texts. The function is asked again,
and may fail with any exception, whose words then stand in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import HOSTS_MAX, Address, parse_hosts
from p2psgd.net.peer_sources.command import from_command
from p2psgd.net.peer_sources.dns import from_name
from p2psgd.net.peer_sources.hosts_file import from_file
from p2psgd.net.peer_sources.slurm import from_slurm
from p2psgd.net.peer_sources.source import PeerSource
from p2psgd.net.peer_sources.variable import from_variable

GROUP: Final = "p2psgd.peers"
BUILT_IN: Final[Mapping[str, Callable[[str], PeerSource]]] = {
    "file": lambda argument: from_file(Path(argument)),
    "dns": from_name,
    "slurm": from_slurm,
    "env": from_variable,
    "exec": from_command,
}
_SCHEME: Final = re.compile(r"([a-z][a-z0-9_-]*):(.*)", re.DOTALL)
_WORDS_MAX: Final = 200  # of an error of another package


def parse_peers(text: str) -> PeerSource:
    """Return the source that --peers names; UsageError if its argument is wrong.

    Text that begins with no known scheme is the path of a file, as `./dns:x` is.
    """
    source = _find(text)
    source.given = text
    return source


def _find(text: str) -> PeerSource:
    match = _SCHEME.fullmatch(text)
    if match is None:
        return from_file(Path(text))
    scheme, argument = match.groups()
    if scheme in BUILT_IN:
        return BUILT_IN[scheme](argument)
    found = entry_points(group=GROUP, name=scheme)
    if found:
        return _of_package(next(iter(found)), argument)
    if not Path(text).exists():
        known = ", ".join(f"{each}:" for each in sorted({*BUILT_IN, *entry_points(group=GROUP).names}))
        raise UsageError(
            f"--peers {text!r:.80}: there is neither such a file nor a source {scheme}:, known are {known}",
            ExitCode.CONFIGURATION,
        )
    return from_file(Path(text))


def _of_package(entry: EntryPoint, argument: str) -> PeerSource:
    """Return the source that another package gives; UsageError if it cannot be imported."""
    try:
        function = entry.load()
    except (Exception, SystemExit) as error:
        words = f"--peers {entry.name}: {entry.value} cannot be imported: {_words(error)}"
        raise UsageError(words, ExitCode.CONFIGURATION) from None

    def ask() -> tuple[Address, ...]:
        try:
            lines = [str(line) for line in islice(function(argument), HOSTS_MAX + 1)]
        except (Exception, SystemExit) as error:  # whatever another package raises: this node goes on
            raise UsageError(f"--peers {entry.name}: {_words(error)}", ExitCode.TEMPORARY) from None
        return parse_hosts("\n".join(lines), f"the answer of --peers {entry.name}")

    return PeerSource(f"{entry.name}:{argument}", ask, again=True)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_WORDS_MAX]
