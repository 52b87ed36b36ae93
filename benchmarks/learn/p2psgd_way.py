"""p2psgd as a script uses it: `attach`, and a daemon beside each trainer."""

from __future__ import annotations

from typing import Any, Final

import p2psgd.torch
from benchmarks.learn.job import Job
from benchmarks.learn.ways import Way

WAIT_S: Final = 5.0  # of silence, after which the others are taken to have ended


class P2psgd(Way):
    """Updates go when they are ready; the daemon counts the bytes."""

    def __init__(self, job: Job, model: Any, optimizer: Any) -> None:
        super().__init__(job, model, optimizer)
        self._link: Any = p2psgd.torch.attach(model, optimizer, **job.options)
        self.rank, self.nodes, self.first = self._link.rank, self._link.world_size, self._link.steps

    @property
    def sent_bytes(self) -> None:
        """Return None: the report of `p2psgd local` has it."""
        return None

    def finish(self) -> Any:
        """Wait for the sends of the others and leave: the model then has the replica's weights, and this
        node's buffers.
        """
        link = self._link.link
        sends = self.job.batches // self.nodes // self.job.options.get("local_steps", 1)
        while min(link.peer_steps.values(), default=sends) < sends and link.wait(WAIT_S):
            link.receive()
        self._link.close()
        return self.model
