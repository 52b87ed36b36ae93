"""Runs the benches and prints their figures: `python -m tests.bench [--large] [NAME...]`."""

from __future__ import annotations

import argparse
import importlib

from tests.bench import BENCHES, Figure


def run_bench(name: str, *, large: bool) -> list[Figure]:
    figures: list[Figure] = importlib.import_module(f"tests.bench.{name}").run(large=large)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; all by default")
    parser.add_argument("--large", action="store_true", help="the sizes that DESIGN's targets are stated for")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHES):
        parser.error(f"unknown bench {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    for name in arguments.names or BENCHES:
        print(name, flush=True)
        for figure in run_bench(name, large=arguments.large):
            print(
                f"  {figure.name:<44} {figure.value:>10.4g} {figure.unit:<16} {figure.note}".rstrip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
