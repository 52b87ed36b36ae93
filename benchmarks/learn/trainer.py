"""Run a process of a training: `python -m benchmarks.learn.trainer JOB [RANK]`.

There is no rank for one process, nor beside a daemon.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.learn import training
from benchmarks.learn.ddp import Ddp, PowerSgd
from benchmarks.learn.diloco import DiLoCo
from benchmarks.learn.job import Answer, Job
from benchmarks.learn.p2psgd_way import P2psgd, P2psgdBesideSlow
from benchmarks.learn.sparseloco import SparseLoCo
from benchmarks.learn.ways import Way, weights_of

METHODS: dict[str, type[Way]] = {
    "one": Way,
    "ddp": Ddp,
    "powersgd": PowerSgd,
    "diloco": DiLoCo,
    "sparseloco": SparseLoCo,
    "p2psgd": P2psgd,
    "p2psgd-slow": P2psgdBesideSlow,
}


def main() -> None:
    torch.set_num_threads(1)
    path, *rank = sys.argv[1:]
    job = Job.read(Path(path))
    if not rank:
        run(job)
        return
    meeting = f"file://{Path(job.directory).resolve() / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=int(rank[0]), world_size=job.nodes)
    run(job)
    torch.distributed.destroy_process_group()


def run(job: Job) -> None:
    """Train, and let the first node answer."""
    model, rows, test = training.load(job)
    optimizers = training.make_optimizers(job, model)
    way = METHODS[job.method](job, model, optimizers)
    assert way.nodes == job.nodes, f"{way.nodes} nodes instead of {job.nodes}"
    steps = training.train(job, way, model, optimizers, rows)
    learnt = way.finish()
    if way.rank == 0:
        loss, accuracy = training.evaluate(learnt, test)
        answer = Answer(
            loss=loss,
            accuracy=accuracy,
            weights=weights_of(model),
            steps=steps,
            sent_bytes=way.sent_bytes,
        )
        answer.write(Path(job.directory))
    way.close()


if __name__ == "__main__":
    main()
