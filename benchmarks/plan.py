"""Predict samples a second, bytes and the bottleneck of a run, for each way of training.

    python -m benchmarks.plan --weights 124M --nodes 4 --bandwidth 100Mbit --step-time 500ms

Every node is a machine of its own, with a processor for its daemon beside those that compute. The model is
benchmarks/scaling/model.py, and `python -m benchmarks.scaling` measures how far it is off. What p2psgd.torch
does when links are too slow for a send of each step is here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.scaling.model import (
    FLOAT_BYTES,
    MEASURED,
    Costs,
    Part,
    Setting,
    Way,
    async_load,
    describe,
    parse_bandwidth,
    parse_count,
    parse_density,
    parse_time,
    predict,
    render,
    update_bytes,
)
from p2psgd.base import formatting
from p2psgd.base.errors import UsageError
from p2psgd.ipc.layout import send_indices_max
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX

# ----------------------------------------------------------------------------
# What p2psgd.torch.attach does by itself in asynchronous mode: it adds steps up while links are busy. A
# send is as long as ever, since its density is, but holds more steps. Links that are slow thus make sends
# rarer, and no trainer waits for them. With a number of local steps given it sends after as many, and waits
# if the links do not carry that.
#
# The mean of steps in a send is the number that fills the link, not the next whole one, because a link has
# buffers. docs/how-to/plan.md compares it with what was measured.


DENSITY: Final = "1/100"  # of p2psgd.torch.attach
ON_GPU: Final = replace(MEASURED, pass_weight_s=0.0)  # which makes a pass in milliseconds
# Bytes a weight beside the model and its optimizer, as measured in docs/how-to/torch.md.
TRAINER_BYTES: Final = 8.5  # the link and, but for float32 on the host, a step's change
SHARED_BYTES: Final = 12.5  # residual, inbox and outbox
DAEMON_BYTES: Final = 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPrediction:
    """Prediction for p2psgd.torch in asynchronous mode, with all nodes; seconds are those of one step.

    `local_steps`: as given to attach; None: steps are added up until a link is free. `steps_of_send`: the
    mean of what a send holds then. `sent_bytes`: frames that a node sends in a step, STATUS included;
    `link_share`: how much of its link that fills. `compression`: of a send, against 4 bytes a weight for each
    of its steps. `computing_share`: the part of the time in which a trainer computes gradients.
    """

    setting: Setting
    local_steps: int | None
    steps_of_send: float
    step_s: float
    bottleneck: Part
    sent_bytes: float
    link_share: float
    compression: float

    @property
    def computing_share(self) -> float:
        """Return the part of the time that is left for gradients."""
        return self.setting.computing_s / self.step_s

    @property
    def steps_per_s(self) -> float:
        """Return the steps per second of all nodes together."""
        return self.setting.nodes / self.step_s

    @property
    def samples_per_s(self) -> float:
        """Return the samples per second of all nodes together."""
        return self.setting.samples * self.steps_per_s


def predict_torch(
    setting: Setting, local_steps: int | None = None, costs: Costs = MEASURED
) -> TorchPrediction:
    """Predict a run of p2psgd.torch; UsageError as from `predict`, or for a number that attach refuses."""
    if local_steps is not None and not 1 <= local_steps <= SEND_STEPS_MAX:
        raise UsageError(f"{local_steps:,} local steps cannot be: give 1 to {SEND_STEPS_MAX:,}")
    most = send_indices_max(setting.weights) / 2 / setting.weights  # attach aims at no more
    setting = replace(setting, density=min(setting.density, most))
    parts = predict(Way.ASYNC, setting, costs).parts  # of a send
    link_s, daemon_s = parts[Part.NETWORK], parts[Part.DAEMON]
    steps = _steps_that_fill(setting, costs, link_s) if local_steps is None else float(local_steps)
    waits_s = link_s if local_steps is not None or steps == SEND_STEPS_MAX else 0.0
    own_s = _own_s(setting, costs)
    main = Part.COMPUTING if steps * setting.computing_s >= own_s else Part.TRAINER
    send_s, bottleneck = max(
        (steps * setting.computing_s + own_s, main),
        (daemon_s, Part.DAEMON),
        (waits_s, Part.NETWORK),
        key=lambda each: each[0],
    )
    step_s = send_s / steps
    load = async_load(setting, costs)
    frame = update_bytes(setting.weights, setting.indices)
    return TorchPrediction(
        setting=setting,
        local_steps=local_steps,
        steps_of_send=steps,
        step_s=step_s,
        bottleneck=bottleneck,
        sent_bytes=load.frame_bytes / steps + load.status_bytes_per_s * step_s,
        link_share=(load.link_bytes / send_s + load.link_bytes_per_s) / setting.link_bytes_per_s,
        compression=steps * FLOAT_BYTES * setting.weights / frame,
    )


def _steps_that_fill(setting: Setting, costs: Costs, link_s: float) -> float:
    """Return the steps that take as long as the link needs for a send, 1 to SEND_STEPS_MAX."""
    return min(float(SEND_STEPS_MAX), max(1.0, (link_s - _own_s(setting, costs)) / setting.computing_s))


def _own_s(setting: Setting, costs: Costs) -> float:
    """Return the seconds of a trainer beside computing, for a send and what arrives meanwhile."""
    load = async_load(setting, costs)
    return load.send_s + load.receive_s


# ----------------------------------------------------------------------------
# The predictions for p2psgd.torch as a table for people and as JSON for machines.


TORCH_ROWS: Final[tuple[tuple[str, Callable[[TorchPrediction], str]], ...]] = (
    ("samples/s", lambda each: formatting.grouped(each.samples_per_s)),
    ("a send holds", lambda each: _steps(each.steps_of_send)),
    ("trainers compute", lambda each: f"{100 * each.computing_share:.0f} % of the time"),
    ("a node sends, a step", lambda each: formatting.size(each.sent_bytes)),
    ("a node sends, a second", lambda each: formatting.size(each.sent_bytes / each.step_s)),
    ("of its link", lambda each: f"{100 * each.link_share:.1f} %"),
    ("fewer bytes than 4 a weight", lambda each: formatting.times(each.compression)),
    ("bottleneck", lambda each: each.bottleneck.value),
    ("step", lambda each: formatting.milliseconds(1e3 * each.step_s)),
)


def render_torch(predictions: Sequence[TorchPrediction]) -> RenderableType:
    """A column for each prediction; fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for each in predictions:
        given = each.local_steps
        table.add_column("by itself" if given is None else f"local_steps={given}", justify="right")
    for name, words in TORCH_ROWS:
        table.add_row(name, *(words(each) for each in predictions))
    parts = TRAINER_BYTES, SHARED_BYTES, DAEMON_BYTES
    memory = formatting.size(sum(parts) * predictions[0].setting.weights)
    notes = (
        "The first table is for trainers that send each step and wait while links are",
        "full: `p2psgd train`, scripts that call link.send, and rings.",
        f"Memory of a node beside model and optimizer: {memory}. A weight takes {parts[0]:g} bytes",
        f"in the trainer, {parts[1]:g} shared with the daemon and {parts[2]:g} in the daemon.",
    )
    return Group(
        Text("p2psgd.torch, asynchronous, adds steps up while links are busy"),
        Text(),
        table,
        Text(),
        *(Text(note, "dim") for note in notes),
    )


def describe_torch(prediction: TorchPrediction) -> dict[str, Any]:
    """JSON-ready; units in the names, which are those of `describe` where they mean the same."""
    setting = prediction.setting
    return {
        "way": "async, p2psgd.torch",
        "nodes": setting.nodes,
        "local_steps": prediction.local_steps,
        "steps_per_send": prediction.steps_of_send,
        "step_s": prediction.step_s,
        "steps_per_s": prediction.steps_per_s,
        "samples_per_s": prediction.samples_per_s,
        "computing_share": prediction.computing_share,
        "sent_bytes_per_step": prediction.sent_bytes,
        "sent_bytes_per_s": prediction.sent_bytes / prediction.step_s,
        "link_share": prediction.link_share,
        "compression": prediction.compression,
        "bottleneck": prediction.bottleneck.value,
        "update_indices": setting.indices,
        "update_bytes": update_bytes(setting.weights, setting.indices),
        "memory_bytes_per_weight": {
            "trainer": TRAINER_BYTES,
            "daemon": DAEMON_BYTES,
            "shared": SHARED_BYTES,
        },
    }


def _steps(count: float) -> str:
    return "1 step" if count == 1 else f"{count:.3g} steps"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(
        option: str,
        parse: Callable[[str], object],
        text: str,
        *,
        metavar: str = "COUNT",
        default: str | None = None,
        required: bool | None = None,
    ) -> None:
        def read(value: str) -> object:
            try:
                return parse(value)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from None

        shown = text if default is None else f"{text} (default: {default})"
        needed = default is None if required is None else required
        parser.add_argument(option, type=read, metavar=metavar, help=shown, default=default, required=needed)

    add("--weights", parse_count, "how many weights the net has: 14.6M")
    add("--nodes", parse_count, "how many nodes")
    add("--bandwidth", parse_bandwidth, "what a link carries each way, a second: 1Gbit", metavar="BITS")
    computing = "what one node takes to compute the gradient of a mini-batch, see `p2psgd status`: 150ms"
    add("--step-time", parse_time, computing, metavar="TIME")
    density = "the fraction of the weights that a send changes, see `p2psgd status --compression`"
    add("--density", parse_density, density, metavar="FRACTION", default=DENSITY)
    local = "p2psgd.torch with attach(local_steps=COUNT) as well, beside what it does by itself"
    add("--local-steps", parse_count, local, required=False)
    gpu = "in p2psgd.torch the model is on a GPU: leave its passes over all weights out"
    parser.add_argument("--gpu", action="store_true", help=gpu)
    add("--batch", parse_count, "samples in a mini-batch", default="256")
    add("--latency", parse_time, "from one node to another, one way", metavar="TIME", default="250us")
    add("--failure-timeout", float, "that of the nodes", metavar="SECONDS", default="5")
    parser.add_argument("--json", action="store_true", help="print everything, for machines")
    given = parser.parse_args()
    try:
        setting = Setting(
            weights=given.weights,
            nodes=given.nodes,
            link_bit_per_s=given.bandwidth,
            computing_s=given.step_time,
            density=given.density,
            samples=given.batch,
            latency_s=given.latency,
            failure_timeout_s=given.failure_timeout,
        )
        predictions = [predict(way, setting) for way in Way]
        asked = [None] if given.local_steps is None else [None, given.local_steps]
        costs = ON_GPU if given.gpu else MEASURED
        torch_predictions = [predict_torch(setting, local_steps, costs) for local_steps in asked]
    except UsageError as error:
        parser.error(str(error))
    if given.json:
        described = [describe(setting, each) for each in predictions]
        print(json.dumps(described + [describe_torch(each) for each in torch_predictions], indent=2))
    else:
        console = Console(highlight=False)
        console.print(render(setting, predictions))
        console.print()
        console.print(render_torch(torch_predictions))


if __name__ == "__main__":
    main()
