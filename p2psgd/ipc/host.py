"""What the daemon around the control server does for it, and the values that pass between the two.

The server (server.py) owns sockets and shared memory; everything it cannot know it asks a
`ControlHost`. All calls happen on the loop and return at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.script_state import ScriptState
from p2psgd.wire.ring_messages import BucketShared, RoundShared
from p2psgd.wire.update import OwnUpdateMade

# What a trainer gives, copied out of shared memory and checked.
Given = OwnUpdateMade | RoundShared | BucketShared


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """What a node's trainer goes on from: the state after `mini_batches`, between two of them.

    `residual` is float32 (P,), read-only, and stays as it is until the next state is asked for (None: zeros);
    `script` is what the script keeps of its own, its arrays read-only (None: nothing). The residual is that
    of `residual_age` mini-batches before, where a trainer that kept it elsewhere has crashed.
    """

    residual: NDArray[np.float32] | None
    script: ScriptState | None
    mini_batches: int
    residual_age: int = 0


class ControlHost(Protocol):
    """The daemon, as its control server sees it."""

    def status(self) -> dict[str, Any]:
        """What `p2psgd status` shows, in types that MessagePack knows."""

    def compression(self) -> dict[str, Any]:
        """How the own updates compress, tensor by tensor, in types that MessagePack knows."""

    def digest(self, *, scrub: bool) -> dict[str, Any]:
        """What `p2psgd digest` shows (observe/model.py); `scrub`: begin one now, if none is running.

        Called only when a run is known.
        """

    def remove(self, node: str, *, forbid: bool) -> int:
        """Wish for a view without this node, by name or id, unless the latest is without it already; return
        its id. UsageError if that cannot be.

        Called only when a run is known.
        """

    def member(self, node: int) -> dict[str, Any]:
        """How a node stands in the latest view (observe/status.py).

        Called only when a run is known.
        """

    def share(self) -> tuple[int, int] | None:
        """The part i of n of the data that this node's trainer takes, if it was told."""

    def name(self) -> str:
        """The node's name."""

    def node_id(self) -> int:
        """And its id."""

    def define_run(self, proposal: RunProposal, coordinates: NDArray[np.int32]) -> None:
        """Take on this run; P2psgdError with both fingerprints if another one is known already."""

    def run(self) -> RunProposal | None:
        """The run that is known, if one is."""

    def replica(self) -> NDArray[np.int32]:
        """The live replica, int32 (P,): copied before control returns to the loop."""

    def replica_digest(self) -> int:
        """The digest of the live replica."""

    def digest_key(self) -> int:
        """Of the run's digests."""

    def own_updates(self, updates: list[OwnUpdateMade]) -> None:
        """Apply and send updates of the own trainer."""

    def shared(self, share: RoundShared | BucketShared) -> None:
        """In ring mode: take what the own trainer gives to the round that was opened for it."""

    def trainer_state(self, state: TrainerState) -> None:
        """The answer to `ControlServer.request_state`: all own updates up to it have been given to
        `own_updates` or `shared`, and none after it.
        """

    def ready(self) -> str:
        """Why no trainer may train on this node now, one sentence for people; "" if one may."""

    def peer_mini_batches(self) -> dict[int, int]:
        """The largest mini-batch number seen of each peer, by node id."""

    def asked_to_finish(self) -> None:
        """Somebody wants the training to end; the trainer has been told."""

    def alarm(self, words: str) -> None:
        """A person should look at this."""

    def trainer_attached(self, pid: int) -> None:
        """A trainer has attached."""

    def trainer_left(self, *, finished: bool, words: str) -> None:
        """It has left; `words` go on after "the trainer", such as "wrote rubbish about its inbox: ..."."""
