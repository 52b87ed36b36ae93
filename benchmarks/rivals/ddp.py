"""A host of PyTorch DDP over gloo: `python -m benchmarks.rivals.ddp JOB`.

Started by torchrun it takes its rank from it, and goes on from the last snapshot, as torchrun's documentation
has scripts do. Default buckets, but for PowerSGD, whose collectives gloo mixes up if there are several: one.
Buffers are not broadcast: there are none but the GPT's mask, which is the same everywhere.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.rivals.job import Job, Notes, last_snapshot
from benchmarks.rivals.training import train, training_of
from benchmarks.rivals.weights import set_weights

PORT: Final = 29_500
OPTIMIZER: Final = "optimizer.pt"  # the last state of it, beside the snapshots of the weights


def main() -> None:
    job = Job.given()
    torch: Any = importlib.import_module("torch")
    distributed = torch.distributed
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    training, first = training_of(job), 0
    state = Path(job.directory) / OPTIMIZER
    elastic = "TORCHELASTIC_RUN_ID" in os.environ
    if elastic:
        distributed.init_process_group("gloo")
        if kept := last_snapshot(state.parent.glob("*.notes")):
            name, first = kept
            set_weights(training.model, np.fromfile(state.with_name(name), np.float32))
    else:
        meeting = f"tcp://{job.addresses[0]}:{PORT}"
        distributed.init_process_group("gloo", init_method=meeting, rank=job.host, world_size=job.hosts)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    ddp = wrap(training.model, job, torch)
    optimizer = training.optimizer(ddp.parameters())
    if first:
        optimizer.load_state_dict(torch.load(state))

    def keep() -> None:
        unfinished = state.with_suffix(".part")
        torch.save(optimizer.state_dict(), unfinished)
        os.replace(unfinished, state)

    notes = Notes(job, snapshots=rank == 0, keep=keep if elastic else None)
    train(job, notes, training, optimizer, net=ddp, share=(rank, size), first=first, unsynced=ddp.no_sync)


def wrap(model: Any, job: Job, torch: Any) -> Any:
    """With the hook that the job's options name."""
    parallel = torch.nn.parallel.DistributedDataParallel
    match job.options["hook"]:
        case "none":
            return parallel(model, broadcast_buffers=False)
        case "fp16":
            hooks = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
            ddp = parallel(model, broadcast_buffers=False)
            ddp.register_comm_hook(None, hooks.fp16_compress_hook)
            return ddp
        case "powersgd":
            power = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
            ddp = parallel(model, bucket_cap_mb=100, broadcast_buffers=False)
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
