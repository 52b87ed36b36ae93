"""The other nodes as one node knows them: the view, the links, the acknowledgements and the names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.frontier import Origin, name_node
from p2psgd.core.membership import Membership
from p2psgd.core.peer import Peer
from p2psgd.core.timing import Timing

NAMES_MAX: Final = 4096  # more than links, members and origins there can be together


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The other nodes, as node `me` knows them. The replica opens and closes links; all others only look."""

    me: Origin
    timing: Timing
    membership: Membership
    acks: Acknowledgements
    peers: dict[Origin, Peer]  # the linked ones
    names: dict[int, str]  # of nodes, for people

    @property
    def other_members(self) -> list[Origin]:
        """The members of the view but this node."""
        return [member for member in self.membership.view.members if member != self.me]

    def name_of(self, origin: Origin) -> str:
        """Return what people call this origin's node."""
        return name_node(origin.node, self.names)

    def learn_name(self, node: int, name: str, *, origins: Iterable[Origin]) -> None:
        """Remember a name; of very many only those of nodes that are linked, members or in `origins`."""
        self.names[node] = name
        if len(self.names) > NAMES_MAX:
            here = {origin.node for origin in (*self.peers, *self.membership.view.members, *origins)}
            for other in self.names.keys() - here - {node, self.me.node}:
                del self.names[other]
