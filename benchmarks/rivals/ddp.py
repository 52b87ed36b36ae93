"""A host of PyTorch DDP over gloo: `python -m benchmarks.rivals.ddp JOB`.

Started by torchrun it takes its rank from it, and goes on from the last snapshot, as torchrun's documentation
has scripts do. Default buckets, but for PowerSGD, whose collectives gloo mixes up if there are several: one.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.rivals.job import Job, Notes
from benchmarks.rivals.task import last_snapshot, make_model, set_weights, sgd, train

PORT: Final = 29_500


def main() -> None:
    job = Job.given()
    torch: Any = importlib.import_module("torch")
    distributed = torch.distributed
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    model, first = make_model(job.seed), 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        distributed.init_process_group("gloo")
        directory = Path(job.directory)
        if kept := last_snapshot(directory.glob("*.notes")):
            name, first = kept
            set_weights(model, np.fromfile(directory / name, np.float32))
    else:
        meeting = f"tcp://{job.addresses[0]}:{PORT}"
        distributed.init_process_group("gloo", init_method=meeting, rank=job.host, world_size=job.hosts)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    ddp = wrap(model, job, torch)
    optimizer = sgd(ddp.parameters())

    def step(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    notes = Notes(job, snapshots=rank == 0)
    train(job, notes, model, net=ddp, step=step, zero=optimizer.zero_grad, share=(rank, size), first=first)


def wrap(model: Any, job: Job, torch: Any) -> Any:
    """With the hook that the job's options name."""
    parallel = torch.nn.parallel.DistributedDataParallel
    match job.options["hook"]:
        case "none":
            return parallel(model)
        case "fp16":
            hooks = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
            ddp = parallel(model)
            ddp.register_comm_hook(None, hooks.fp16_compress_hook)
            return ddp
        case "powersgd":
            power = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
            ddp = parallel(model, bucket_cap_mb=100)
            state = power.PowerSGDState(
                None,
                matrix_approximation_rank=job.options["rank"],
                start_powerSGD_iter=job.setting["whole_steps"],
                use_error_feedback=True,
                warm_start=True,
            )
            ddp.register_comm_hook(state, power.powerSGD_hook)
            return ddp
        case other:
            raise SystemExit(f"what is the hook {other!r}?")


if __name__ == "__main__":
    main()
