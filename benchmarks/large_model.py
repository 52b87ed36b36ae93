"""Measure two nodes with a model of the size of GPT-2 small: attach, send, join late, checkpoint, restart.

Real daemons on this machine, and trainers in processes of their own, whose gradient is noise that is made
once. The density is 1 %, steered as in training. A send is compared with numpy's in-place add of as many
numbers in the same process. `python -m benchmarks.large_model` prints the large size.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import p2psgd
from benchmarks import Figure, checksum
from p2psgd.client.step_size import StepSize
from tests.daemons import Daemon, all_stopped, assert_replicas_identical
from tests.ports import free_ports

DENSITY: Final = 0.01
RATE: Final = 1e-3  # of the made-up gradient, whose entries have a deviation of 1
SHIFTS: Final = 4096  # by so many places the noise is shifted from step to step
READY_S: Final = 600.0


def shapes_of(large: bool) -> dict[str, tuple[int, ...]]:
    """Return the tensors of GPT-2 small, 124,439,808 weights, or of a net of its form that is small."""
    width, layers, words, places = (768, 12, 50_257, 1024) if large else (32, 2, 500, 64)
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (words, width),
        "transformer.wpe.weight": (places, width),
    }
    for layer in range(layers):
        for name, sides in {
            "ln_1": (width,),
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "ln_2": (width,),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }.items():
            shapes[f"transformer.h.{layer}.{name}.weight"] = sides
            shapes[f"transformer.h.{layer}.{name}.bias"] = sides[-1:]
    return shapes | {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}


# ----------------------------------------------------------------------------
# The trainer: a process that makes as many steps as a line on its standard input says, and prints one line of
# JSON for each.


def train(control: str, large: bool, seed: int) -> None:
    """Attach, and serve standard input until it ends."""
    shapes = shapes_of(large)
    chance = np.random.default_rng(1)
    initial = {
        name: chance.standard_normal(shape, np.float32) * np.float32(0.02) for name, shape in shapes.items()
    }
    begin = time.perf_counter()
    link = p2psgd.attach(initial, control=control, timeout_s=READY_S)
    attach_s = time.perf_counter() - begin
    del initial
    weights = link.weights.size
    noise = np.random.default_rng(seed).standard_normal(weights + SHIFTS, np.float32)
    noise *= np.float32(RATE)
    size = StepSize(weights, link.quantum, density=DENSITY)
    size.restore(4.0)  # in units of the gradient's deviation
    total = np.zeros(weights, np.float32)
    say({"attach_s": attach_s, "steps": link.steps, **memory_of("self")})
    for line in sys.stdin:
        times: dict[str, list[float]] = {"receive": [], "send": [], "add": []}
        sent = 0
        for _ in range(int(line)):
            shift = (link.steps * 997) % SHIFTS
            delta = noise[shift : shift + weights]
            times["receive"].append(seconds_of(link.receive))
            before = link.waited_s
            begin = time.perf_counter()
            sent = link.send(delta, threshold=size.step(RATE))
            times["send"].append(time.perf_counter() - begin - (link.waited_s - before))
            size.sent(sent)
            times["add"].append(seconds_of(lambda delta=delta: np.add(total, delta, out=total)))
        say({"steps": link.steps, "sent": sent, "times": times, **memory_of("self")})
    link.receive()
    link.close()


def seconds_of(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def say(fields: dict[str, Any]) -> None:
    print(json.dumps(fields), flush=True)


def memory_of(process: int | str) -> dict[str, int]:
    """Return the bytes of a process's own memory, of shared memory that it has mapped, and their peak."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    names = {"own": "RssAnon", "shared": "RssShmem", "peak": "VmHWM"}
    return {key: 1024 * int(lines[name].split()[0]) for key, name in names.items()}


# ----------------------------------------------------------------------------
# The bench: two nodes, of which one comes late.


class Trainer:
    """A trainer's process."""

    def __init__(self, daemon: Daemon, *, large: bool, seed: int) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.large_model",
            str(daemon.state),
            str(int(large)),
            str(seed),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def answer(self) -> dict[str, Any]:
        """Wait for what it says next."""
        assert self.process.stdout is not None
        fields: dict[str, Any] = json.loads(self.process.stdout.readline())
        return fields

    def order(self, steps: int) -> None:
        """Have it make steps."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)

    def end(self) -> None:
        """Have it detach, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(READY_S) == 0


@contextlib.contextmanager
def no_process_left(trainers: list[Trainer]) -> Iterator[None]:
    try:
        yield
    finally:
        for trainer in trainers:
            with trainer.process as process:  # closes its pipes, and waits
                process.kill()


def run(*, large: bool) -> list[Figure]:
    """Large: 124.4 million weights in 148 tensors; about 6 GB of memory for each node."""
    weights = sum(math.prod(shape) for shape in shapes_of(large).values())
    steps = 12 if large else 3
    daemons: list[Daemon] = []
    trainers: list[Trainer] = []
    with tempfile.TemporaryDirectory() as folder, all_stopped(daemons), no_process_left(trainers):
        ports = free_ports(2)
        hosts = Path(folder, "hosts.txt")
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))

        def start(number: int) -> Daemon:
            place = Path(folder, f"node-{number}")
            return Daemon(place, "--peers", str(hosts), "--listen", f"127.0.0.1:{ports[number]}")

        daemons.append(start(0))
        trainers.append(Trainer(daemons[0], large=large, seed=10))
        first = trainers[0].answer()
        trainers[0].order(steps)
        alone = trainers[0].answer()

        daemons.append(start(1))
        trainers.append(Trainer(daemons[1], large=large, seed=11))
        joined = trainers[1].answer()
        for trainer in trainers:
            trainer.order(steps)
        both = [trainer.answer() for trainer in trainers]
        daemon = memory_of(daemons[0].process.pid)
        for trainer in trainers:
            trainer.end()
        assert_replicas_identical(daemons, timeout_s=READY_S)
        _, replica = daemons[0].replica()
        result = checksum(replica)
        stop_s = seconds_of(daemons[0].stop)
        kept = max(Path(folder, "node-0").rglob("*.safetensors"), key=lambda path: path.stat().st_mtime)
        kept_bytes = kept.stat().st_size
        daemons[0] = start(0)
        trainers.append(Trainer(daemons[0], large=large, seed=10))
        again = trainers[2].answer()
        assert again["steps"] == 2 * steps
        trainers[2].end()

    half = {name: statistics.median(seconds) for name, seconds in alone["times"].items()}
    shared = {name: statistics.median(seconds) for name, seconds in both[0]["times"].items()}
    density = alone["sent"] / weights
    each = "bytes/weight"
    return [
        Figure("attach, alone", first["attach_s"], "s", f"{weights:,} weights; {result}"),
        Figure("one pass over the weights", 1e3 * half["add"], "ms", "numpy's add in place"),
        Figure("send", half["send"] / half["add"], "passes", f"{density:.2%} of the weights sent"),
        Figure(
            "send, both nodes training", shared["send"] / shared["add"], "passes", "two nodes, one machine"
        ),
        Figure("receive, both nodes training", shared["receive"] / shared["add"], "passes", "all that came"),
        Figure("join late", joined["attach_s"], "s", "start of the trainer to attached; with the snapshot"),
        Figure("stop", stop_s, "s", f"with a checkpoint of {kept_bytes / weights:.1f} bytes for each weight"),
        Figure("start again and attach", again["attach_s"], "s", "from the checkpoint"),
        Figure("trainer, link alone", (both[0]["own"] - 8 * weights) / weights, each, "without its gradient"),
        Figure(
            "shared memory", max(both[0]["shared"], daemon["shared"]) / weights, each, "residual and rings"
        ),
        Figure("daemon", daemon["own"] / weights, each, "its own, while training"),
        Figure("daemon, peak", daemon["peak"] / weights, each, "with what is shared"),
        Figure("trainer, peak", both[0]["peak"] / weights, each, "with what is shared, and initial weights"),
    ]


if __name__ == "__main__":
    if sys.argv[1:]:
        train(sys.argv[1], large=bool(int(sys.argv[2])), seed=int(sys.argv[3]))
    else:
        for figure in run(large=True):
            print(f"{figure.name:<34} {figure.value:>10.4g} {figure.unit:<14} {figure.note}")
