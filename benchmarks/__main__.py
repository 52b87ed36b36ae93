"""Runs the benches and prints their figures: `python -m benchmarks [--large] [NAME...]`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from benchmarks import BENCHES, Figure
from p2psgd.base.errors import P2psgdError


def run_bench(name: str, *, large: bool, **options: Any) -> list[Figure]:
    figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").run(large=large, **options)
    return figures


def named_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; all by default")
    parser.add_argument(
        "--large",
        action="store_true",
        help="the sizes that the targets are stated for; small ones only show that all run",
    )
    codec = parser.add_argument_group(
        "codec", "Only for the bench codec, and what it makes of docs/explanation/codec.md"
    )
    codec.add_argument(
        "--recording",
        action="append",
        default=[],
        type=named_file,
        metavar="NAME=FILE",
        help="also measure the updates in a copy of a node's run/own-*.rec, under this name; may be repeated",
    )
    codec.add_argument("--plot", type=Path, metavar="FILE", help="draw bits per index against speed")
    codec.add_argument("--page", type=Path, metavar="FILE", help="put the tables into this page of docs/")
    arguments = parser.parse_args()
    options = {
        "codec": {"recordings": arguments.recording, "plot": arguments.plot, "page": arguments.page},
    }
    if unknown := set(arguments.names) - set(BENCHES):
        parser.error(f"unknown bench {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    for name in arguments.names or BENCHES:
        print(
            f"{name}, {'large' if arguments.large else 'small: use --large for figures that mean something'}"
        )
        try:
            figures = run_bench(name, large=arguments.large, **options.get(name, {}))
        except (OSError, P2psgdError) as error:
            raise SystemExit(f"{name}: {error}") from None
        for figure in figures:
            print(
                f"  {figure.name:<44} {figure.value:>10.4g} {figure.unit:<16} {figure.note}".rstrip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
