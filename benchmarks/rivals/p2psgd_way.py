"""A host of p2psgd: `python -m benchmarks.rivals.p2psgd_way JOB`, beside a daemon of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benchmarks.rivals.job import Job, Notes
from benchmarks.rivals.task import make_model, sgd, train


def state_directory(directory: Path, host: int) -> Path:
    """Return the state directory of the daemon on that host."""
    return directory / f"node-{host}"


def main() -> None:
    job = Job.given()
    p2psgd_torch: Any = importlib.import_module("p2psgd.torch")
    model = make_model(job.seed)
    optimizer = sgd(model.parameters())
    optimizer.param_groups[0]["lr"] = job.setting["rate"]
    sent = {key: job.setting[key] for key in ("density", "tau") if key in job.setting}
    control = state_directory(Path(job.directory), job.host)
    with p2psgd_torch.attach(model, optimizer, control=control, **sent, **job.options) as link:

        def step(rate: float) -> None:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

        notes = Notes(job, snapshots=job.host == 0)
        share = link.rank, link.world_size
        assert share == (job.host, job.hosts), f"share {share} at host {job.host}"
        train(job, notes, model, net=model, step=step, zero=optimizer.zero_grad, share=share)


if __name__ == "__main__":
    main()
