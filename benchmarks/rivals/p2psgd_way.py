"""A host of p2psgd: `python -m benchmarks.rivals.p2psgd_way JOB`, beside a daemon of its own.

It counts the time in which it computes: forward and backward passes, clipping, and the optimizer's own step
without what p2psgd adds to it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benchmarks.rivals.job import Job, Notes
from benchmarks.rivals.training import Stopwatch, train, training_of


def state_directory(directory: Path, host: int) -> Path:
    """Return the state directory of the daemon on that host."""
    return directory / f"node-{host}"


def main() -> None:
    job = Job.given()
    p2psgd_torch: Any = importlib.import_module("p2psgd.torch")
    training, computing = training_of(job), Stopwatch()
    optimizer = training.optimizer(training.model.parameters())
    optimizer.param_groups[0]["lr"] = job.setting["rate"]
    sent = {key: job.setting[key] for key in ("density", "tau") if key in job.setting}
    control = state_directory(Path(job.directory), job.host)
    # Hooks are called in the order of their making: the one before attach ends the optimizer's own step, the
    # one after it begins it.
    optimizer.register_step_post_hook(lambda *_: computing.stop())
    attached = p2psgd_torch.attach(training.model, optimizer, control=control, **sent, **job.options)
    optimizer.register_step_pre_hook(lambda *_: computing.start())
    with attached as link:
        notes = Notes(job, snapshots=job.host == 0)
        share = link.rank, link.world_size
        assert share == (job.host, job.hosts), f"share {share} at host {job.host}"
        train(job, notes, training, optimizer, net=training.model, share=share, computing=computing)


if __name__ == "__main__":
    main()
