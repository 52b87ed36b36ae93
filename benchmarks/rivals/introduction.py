"""The words before the figures of each task: what was measured, and how."""

from __future__ import annotations

import textwrap
from typing import Final

from benchmarks.rivals import gpt
from benchmarks.rivals.cases import HOSTS, LAN_MBIT
from benchmarks.rivals.processors import BUSY_MAX
from benchmarks.rivals.results import AS_GOOD, Results
from benchmarks.rivals.speech import FOUR_PASSES, HELD_OUT, SHAPE
from benchmarks.rivals.verdicts import asynchronous

PAGE_WIDTH: Final = 140


def introduction(results: Results) -> str:
    """Return the paragraphs of this task."""
    words = {"speech": _speech, "gpt": _gpt}[results.task.name](results)
    return "\n\n".join(textwrap.fill(" ".join(each.split()), PAGE_WIDTH) for each in words.split("\n\n"))


def _machine(results: Results) -> str:
    return ", ".join(f"{name} {words}" for name, words in results.machine.items())


def _seeds(results: Results) -> list[int]:
    return sorted({case.seed for case in results.task.cases})


def _speech(results: Results) -> str:
    task, seeds = results.task, _seeds(results)
    widths = " - ".join(map(str, (SHAPE.inputs, *SHAPE.hidden, SHAPE.classes)))
    return f"""`make rivals` ({_machine(results)}; seeds {seeds[0]} to {seeds[-1]}, with a fault {seeds[0]})
        trains a net of {SHAPE.weights:,} weights (ReLU, {widths}) on the 30 minutes of speech that come with
        p2psgd, until the loss on {HELD_OUT:,} frames of unseen voices is {task.target} nats. {HOSTS}
        hosts are network namespaces on one machine. Each has a link of the given rate, both ways, and
        an equal part of {100 * BUSY_MAX:.0f} % of the machine's processors, by control groups. This
        is less than a core each: at 1 Gbit/s, and for PowerSGD on slower links too, the processors
        are the limit, and on larger machines the gaps would differ. Links have a rate and no delay,
        which favours all methods that train in lock-step.

        All methods train the same PyTorch module by plain SGD, with {task.batch} samples per host and
        mini-batch, in the same order of samples; the rate rises over the first {task.warm_up:,} samples.
        The settings of each method were searched with seed 1, on links of {LAN_MBIT} Mbit/s, or without a
        rate limit where only the learning rate was searched. The fastest settings were chosen, or the first
        listed of those within {100 * (AS_GOOD - 1):.0f} % of the fastest; where none reached the target in
        a minute, those with the lowest loss. DDP exchanges gradients after every mini-batch: accumulation
        over several mini-batches, and local SGD, were not tried. PowerSGD has one bucket, because gloo
        mixes up several, and therefore overlaps nothing. Gloo and p2psgd send plain text here, hivemind
        encrypts. Nodes of p2psgd keep their state in memory (/dev/shm), so no figure includes a disk.

        The loss is that of host 0's weights, written every second and evaluated outside the hosts. The time
        is interpolated between two of them; figures are means of {len(seeds)} seeds, with their range, and
        a single number is of one run. Bytes are all bytes that left the hosts' interfaces, including
        p2psgd's daemons and headers. Of data that the kernel hands over in large pieces, mostly dense
        gradients, one header per piece is counted, which omits up to 5 %.

        {task.target} nats is early: less than one pass over the frames for most methods, and four passes
        end near {FOUR_PASSES}. The methods' final losses were not compared here; the section above compares
        p2psgd with plain SGD over all epochs.{_later(results)}"""


def _gpt(results: Results) -> str:
    task, seeds = results.task, _seeds(results)
    accumulate = task.ways["ddp-8"].options["accumulate"]
    width, layers, context = (gpt.SIZES[name] for name in ("width", "layers", "context"))
    return f"""`make rivals RIVALS="--task gpt"` ({_machine(results)}; seeds {seeds[0]} to {seeds[-1]}, with
        a fault {seeds[0]}) trains the transformer of [Learning](learning.md) with 0.5 million weights (width
        {width}, {layers} layers, {context} bytes of context) on the source of Python's standard
        library, until the loss on {gpt.HELD_OUT} windows of unseen files is {task.target} nats a
        byte. Hosts, links, processors, the evaluation outside the hosts and the choice of settings
        are as above, but the loss is taken every {task.snapshot_every_s:g} s, and a search's run
        takes {task.search_s:g} s at most.

        All methods train by AdamW with betas of {gpt.BETAS[0]} and {gpt.BETAS[1]}, a weight decay of
        {gpt.WEIGHT_DECAY} and gradients clipped to a norm of {task.clip:g}, with {task.batch} samples per
        host and mini-batch. The rate rises over the first {task.warm_up:,} samples of all hosts and then
        stays, since nobody knows before how many samples a run takes. Only the rate was searched: p2psgd
        runs as `p2psgd.torch.attach(model, optimizer)`, with all defaults, which add steps up while links
        are busy. Its rate was searched on links of {LAN_MBIT} Mbit/s, that of the others without a rate
        limit, which changes nothing but the time. DDP was tried with gradients added up over {accumulate}
        mini-batches, too (`no_sync`), which sends 1/{accumulate} of the bytes. The weights whose loss
        counts are those that the script of host 0 sees: in p2psgd the replica and the host's own residual."""


def _later(results: Results) -> str:
    """Describe a run that went on after the target, since nothing lowers its rate."""
    run = results.runs.get(f"{asynchronous(results.task).name} {LAN_MBIT} killed 1")
    if run is None or run.target_s is None or run.loss <= results.task.target:
        return ""
    least_s, _, least = min(run.curve, key=lambda point: point[2])
    last_s, _, last = run.curve[-1]
    return (
        f" At a constant rate, the asynchronous run with a killed host had its least loss, {least:.2f},"
        f" after {least_s:.0f} s, and {last:.2f} after {last_s:.0f} s: lower the rate over time, as the"
        " recipes do."
    )
