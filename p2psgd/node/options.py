"""The options of `p2psgd node`, as its command line gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2psgd.ipc.part import Part
from p2psgd.net.address import Address
from p2psgd.net.peer_sources.source import PeerSource


@dataclass(frozen=True)
class NodeOptions:
    """The options of a node. `failure_timeout_s` is the one time setting; all others derive from it.
    `control`: the control socket, if not in the state directory; `control_group`: id of the group that may
    use it. `tls`: the TLS directory; without one a node listens on loopback only, unless
    `insecure_plaintext`. `bootstrap_expect`: how many nodes bootstrap the run, if not those of the list;
    `advertise`: where others dial this node instead; `rank`: (i, n), if not by the place in the
    list. `part`: the part of the model that its trainer holds, if that is cut over several; the ports of
    `peers` are those of part 0. `end_with_trainer`: the node ends when `trainer` has finished.
    """

    peers: PeerSource | None
    listen: Address
    state: Path
    control: Path | None = None
    control_group: int | None = None
    name: str | None = None
    tls: Path | None = None
    insecure_plaintext: bool = False
    bootstrap_expect: int | None = None
    advertise: Address | None = None
    rank: tuple[int, int] | None = None
    part: Part | None = None
    zeroconf: bool = False
    trainer: str | None = None
    end_with_trainer: bool = False
    http: Address | None = None
    http_exposed: bool = False
    failure_timeout_s: float = 5.0
    log_budget_bytes: int = 256 * 1024 * 1024
    store_budget_bytes: int = 1024 * 1024 * 1024

    def bootstrap_expect_of(self, others: int) -> int:
        """Return how many nodes bootstrap the run, this one included, when a list names `others` more.

        Where members are elastic, others are expected though their number is unknown, so no node begins a run
        alone.
        """
        return self.bootstrap_expect or max(1 + others, 2 if self.elastic else 1)

    @property
    def elastic(self) -> bool:
        """Return whether nodes may come and go without a list that all of them have: none has a place."""
        return self.zeroconf or (self.peers is not None and not self.peers.ordered)

    @property
    def ports_above(self) -> int:
        """Return by how much the ports of this node and its peers are above those of the list."""
        return 0 if self.part is None else self.part.index

    @property
    def control_place(self) -> Path:
        """Return the value that a trainer's P2PSGD_CONTROL must have."""
        return (self.control or self.state).absolute()
