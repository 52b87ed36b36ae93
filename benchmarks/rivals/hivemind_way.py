"""A host of hivemind: `python -m benchmarks.rivals.hivemind_way JOB`.

`updates` "local": each host updates its weights by its own gradients, and averages weights with the others in
the background whenever all have used `every` samples together; "global": one update for `every` samples, by
the mean of all gradients. What is averaged travels in 8 bits.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.rivals.job import Job, Notes
from benchmarks.rivals.training import train, training_of

PORT: Final = 31_337
AVERAGING_TIMEOUT_S: Final = 20.0  # twice what an all-reduce takes at 10 Mbit/s, as its guide says


def main() -> None:
    job = Job.given()
    hivemind: Any = importlib.import_module("hivemind")
    dht = join(job, hivemind)
    training, setting = training_of(job), job.setting
    eight_bits = hivemind.compression.Uniform8BitQuantization()
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="rivals",
        target_batch_size=setting["every"],
        batch_size_per_step=job.task.batch,
        params=list(training.model.parameters()),
        optimizer=training.optimizer,
        offload_optimizer=False,
        use_local_updates=setting["updates"] == "local",
        matchmaking_time=setting["matchmaking_s"],
        averaging_timeout=AVERAGING_TIMEOUT_S,
        next_chunk_timeout=AVERAGING_TIMEOUT_S,  # a busy host is no lost one
        grad_compression=eight_bits,
        state_averaging_compression=eight_bits,
        verbose=True,
    )
    notes = Notes(job, snapshots=job.host == 0)
    train(
        job,
        notes,
        training,
        optimizer.state_averager.optimizer,
        net=training.model,
        share=(job.host, job.hosts),
        step=optimizer.step,
        zero=optimizer.zero_grad,
    )


def join(job: Job, hivemind: Any) -> Any:
    """The DHT that all share: host 0 begins it and says where it is."""
    directory = Path(job.directory)
    listen = [f"/ip4/{job.addresses[job.host]}/tcp/{PORT}"]
    meeting = directory / "meeting.json"
    if job.host == 0:
        dht = hivemind.DHT(host_maddrs=listen, start=True)
        unfinished = directory / "meeting.part"
        unfinished.write_text(json.dumps([str(each) for each in dht.get_visible_maddrs()]))
        os.replace(unfinished, meeting)
        return dht
    while not meeting.exists():
        time.sleep(0.05)
    return hivemind.DHT(host_maddrs=listen, initial_peers=json.loads(meeting.read_text()), start=True)


if __name__ == "__main__":
    main()
