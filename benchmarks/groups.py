"""Measure what p2psgd adds to the step of a rank, where FSDP2 has cut the model over the ranks of a group.

Real daemons and torchrun. The gradient is noise, and a step is paced, so that what is measured is the work of
`optimizer.step()`, with p2psgd and without. What p2psgd adds is measured within each step, by hooks, as the
optimizer's own time differs from run to run by as much. `python -m benchmarks.groups` prints the size that
the target is stated for: 124 million weights over two ranks, a step each second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MATRICES: Final = 12
WAYS: Final[Mapping[str, dict[str, Any] | None]] = {  # options of attach; None: without p2psgd
    "alone": None,
    "each step sent": {"local_steps": 1},
    "10 steps together": {"local_steps": 10},
}
WARM: Final = 20  # steps that are not counted: with local steps, the first two sends
LIMIT_S: Final = 500.0


def train(way: str, weights: int, steps: int, pace_s: float, notes: Path) -> None:
    """Make paced steps as one rank, and write how long each took and what memory this process has."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import p2psgd.torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    width = math.isqrt(weights // MATRICES)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(MATRICES)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    options = WAYS[way]
    inner = [0.0] * 4  # clock and processor where the optimizer's own work begins, and where it ends
    # The two hooks enclose the optimizer's own work alone: those of attach run before and after both.
    optimizer.register_step_post_hook(lambda *_: inner.__setitem__(slice(2, 4), now()))
    link = None if options is None else p2psgd.torch.attach(model, optimizer, **options)
    optimizer.register_step_pre_hook(lambda *_: inner.__setitem__(slice(2), now()))
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    took, added, computed = [], [], []
    for _ in range(steps):
        began = time.perf_counter()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        dist.barrier()
        before = now()
        optimizer.step()
        whole_s, whole_cpu_s = (after - first for after, first in zip(now(), before, strict=True))
        took.append(whole_s)
        added.append(whole_s - (inner[2] - inner[0]))
        computed.append(whole_cpu_s - (inner[3] - inner[1]))
        time.sleep(max(0.0, pace_s - (time.perf_counter() - began)))
    status = Path("/proc/self/status").read_text()
    memory = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
    if link is not None:
        link.close(finished=True, wait_s=1.0)
    record = {"took": took, "added": added, "computed": computed, "memory": memory}
    (notes / f"{dist.get_rank()}.json").write_text(json.dumps(record))
    dist.destroy_process_group()


def now() -> tuple[float, float]:
    """Return the time, and what this thread has had of a processor; seconds."""
    return time.perf_counter(), time.thread_time()


def measure(way: str, *, ranks: int, weights: int, steps: int, pace_s: float) -> list[dict[str, Any]]:
    """Run one way in processes of their own; return what each rank has noted."""
    with tempfile.TemporaryDirectory() as directory:
        script = [str(Path(__file__)), "--train", way, "--weights", str(weights)]
        script += ["--steps", str(steps), "--pace", str(pace_s), "--notes", directory]
        launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
        command = [*launcher, "--nproc-per-node", str(ranks), *script]
        if WAYS[way] is not None:
            local = [sys.executable, "-m", "p2psgd", "local", "-n", "1", "--parts", str(ranks)]
            command = [*local, "--trainer", shlex.join(command)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            command, timeout=LIMIT_S, capture_output=True, text=True, check=False, env=environment
        )
        files = sorted(Path(directory).glob("*.json"))
        if len(files) < ranks:
            raise RuntimeError(done.stdout + done.stderr)
        return [json.loads(path.read_text()) for path in files]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--weights", type=int, default=124_000_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pace", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train is not None:
        train(asked.train, asked.weights, asked.steps, asked.pace, asked.notes)
        return
    if asked.steps <= WARM:
        parser.error(f"--steps must be more than {WARM}: the first {WARM} are not counted")
    for way in WAYS:
        ranks = measure(way, ranks=2, weights=asked.weights, steps=asked.steps, pace_s=asked.pace)
        # The first steps make the optimizer's state, and the first sends fault memory in.
        took_s, added_s, computed_s = (
            max(statistics.fmean(rank[kind][WARM:]) for rank in ranks)
            for kind in ("took", "added", "computed")
        )
        gigabytes = max(rank["memory"] for rank in ranks) / 1e9
        print(
            f"{way:<18} {1000 * took_s:7.1f} ms a step, {1000 * added_s:6.1f} of them not the optimizer's,"
            f" {100 * added_s / asked.pace:4.1f} % of {asked.pace:g} s; {1000 * computed_s:6.1f} ms of a"
            f" processor; {gigabytes:.2f} GB in a rank",
            flush=True,
        )
    whole = measure("each step sent", ranks=1, weights=asked.weights, steps=2, pace_s=asked.pace)
    print(f"one rank with the whole model: {whole[0]['memory'] / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
