"""What the files of a TLS directory are called, and how a certificate names its node.

The subject's common name is what people call the node; the subjectAltName holds one URI, `p2psgd:node:` and
the node's id in 16 hexadecimal digits. The id is what is trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

CA_FILE: Final = "ca.pem"
CERTIFICATE_FILE: Final = "node.pem"
KEY_FILE: Final = "node.key"
URI_PREFIX: Final = "p2psgd:node:"

_URI: Final = re.compile(re.escape(URI_PREFIX) + "([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class CertifiedPeer:
    """The node that a certificate of the run's CA names."""

    node: int
    name: str


def uri_of(node: int) -> str:
    """How a certificate says a node's id."""
    return f"{URI_PREFIX}{node:016x}"


def node_of(uri: str) -> int | None:
    """The id in such a URI; None if it is another."""
    match = _URI.fullmatch(uri)
    return int(match[1], 16) if match else None
