"""`p2psgd plan`: how many nodes, predicted before any of them is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from p2psgd.cli.options import PatienceOption, check_patience
from p2psgd.errors import UsageError
from p2psgd.formatting import print_text

Value = TypeVar("Value")


def plan(
    weights: Annotated[str, typer.Option(metavar="COUNT", help="How many weights the net has: 14.6M.")],
    nodes: Annotated[str, typer.Option(metavar="COUNT", help="How many nodes.")],
    bandwidth: Annotated[
        str, typer.Option(metavar="BITS", help="What the link of a node carries each way, a second: 1Gbit.")
    ],
    step_time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="What one node takes to compute the gradient of a mini-batch: 150ms. "
            "`p2psgd status` of a node that trains tells it.",
        ),
    ],
    density: Annotated[
        str,
        typer.Option(
            metavar="PART",
            help="The part of the weights that a mini-batch changes: `p2psgd status --compression`.",
        ),
    ] = "1/850",
    batch: Annotated[str, typer.Option(metavar="COUNT", help="Samples in a mini-batch.")] = "256",
    latency: Annotated[
        str, typer.Option(metavar="TIME", help="From one node to another, one way.")
    ] = "250us",
    patience: PatienceOption = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for machines.")] = False,
) -> None:
    """Predict samples a second, bytes and the bottleneck of a run, for each way of training.

    Every node is a machine of its own, with a processor for its daemon beside those that compute.
    """
    from rich.console import Console

    from p2psgd.cli.plan_model import (
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

    check_patience(patience)
    setting = Setting(
        weights=_read("--weights", parse_count, weights),
        nodes=_read("--nodes", parse_count, nodes),
        link_bit_per_s=_read("--bandwidth", parse_bandwidth, bandwidth),
        computing_s=_read("--step-time", parse_time, step_time),
        density=_read("--density", parse_density, density),
        samples=_read("--batch", parse_count, batch),
        latency_s=_read("--latency", parse_time, latency),
        patience_s=patience,
    )
    predictions = [predict(way, setting) for way in Way]
    if as_json:
        print_text(json.dumps([describe(setting, each) for each in predictions], indent=2))
    else:
        Console(highlight=False).print(render(setting, predictions))


def _read(option: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
