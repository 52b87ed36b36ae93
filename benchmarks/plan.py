"""Predict samples a second, bytes and the bottleneck of a run, for each way of training.

    python -m benchmarks.plan --weights 14.6M --nodes 32 --bandwidth 1Gbit --step-time 150ms --density 1/850

Every node is a machine of its own, with a processor for its daemon beside those that compute. The model is
benchmarks/scaling/model.py, and `python -m benchmarks.scaling` measures how far it is off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from rich.console import Console

from benchmarks.scaling.model import (
    Setting,
    Way,
    describe,
    parse_bandwidth,
    parse_count,
    parse_density,
    parse_time,
    predict,
    render,
)
from p2psgd.base.errors import UsageError


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
    ) -> None:
        def read(value: str) -> object:
            try:
                return parse(value)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from None

        shown = text if default is None else f"{text} (default: {default})"
        parser.add_argument(
            option, type=read, metavar=metavar, help=shown, default=default, required=default is None
        )

    add("--weights", parse_count, "how many weights the net has: 14.6M")
    add("--nodes", parse_count, "how many nodes")
    add("--bandwidth", parse_bandwidth, "what a link carries each way, a second: 1Gbit", metavar="BITS")
    computing = "what one node takes to compute the gradient of a mini-batch, see `p2psgd status`: 150ms"
    add("--step-time", parse_time, computing, metavar="TIME")
    density = "the fraction of the weights that a mini-batch changes, see `p2psgd status --compression`"
    add("--density", parse_density, density, metavar="FRACTION", default="1/850")
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
    except UsageError as error:
        parser.error(str(error))
    if given.json:
        print(json.dumps([describe(setting, each) for each in predictions], indent=2))
    else:
        Console(highlight=False).print(render(setting, predictions))


if __name__ == "__main__":
    main()
