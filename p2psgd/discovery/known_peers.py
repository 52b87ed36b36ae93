"""A file in the state directory with the addresses that peers have told, so that a node that starts again
finds its run also when the address it was first given is gone.

One `address  # id` a line, as in a list of hosts. It may be lost or damaged: then it is as if it were empty.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from p2psgd.core.node_id import parse_node_id
from p2psgd.discovery.address import Address, parse_address
from p2psgd.discovery.hints import NODES_MAX, TOLD_MAX, Hints

NAME: Final = "known-peers.txt"
FILE_BYTES_MAX: Final = 512 * 1024
HEAD: Final = "# Where this node's peers were, as they told; written by the node itself.\n"

log = logging.getLogger("p2psgd.discovery")


def read_known_peers(state: Path, hints: Hints) -> None:
    """Tell `hints` what the file says, if there is one."""
    path = state / NAME
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        lines = path.read_text(encoding="ascii").splitlines()
        told = [_parse(line) for line in lines if not line.startswith("#")]
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        log.warning("%s is passed over: %s", path, error)
        return
    for node, address in told[: NODES_MAX * TOLD_MAX]:
        hints.tell(node, address)


def pack_known_peers(told: list[tuple[int, Address]]) -> bytes:
    """The file's content."""
    return (HEAD + "".join(f"{address}  # {node:016x}\n" for node, address in told)).encode("ascii")


def _parse(line: str) -> tuple[int, Address]:
    place, _, name = line.partition("#")
    node = parse_node_id(name.strip())
    if node is None:
        raise ValueError(f"{line!r:.80} is not an address and an id")
    return node, parse_address(place.strip())
