"""Runs the benches of the GPU and prints their figures: `python -m benchmarks.gpu [NAME...]`."""

from __future__ import annotations

import argparse
import importlib

from benchmarks import Figure
from benchmarks.gpu import BENCHES
from tests.gpu.backends import device, why_no_device


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; all by default")
    names = parser.parse_args().names or BENCHES
    if unknown := set(names) - set(BENCHES):
        parser.error(f"unknown bench {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    if missing := why_no_device():
        print(f"no figures: the benches of the GPU {missing.replace('needs', 'need', 1)}")
        return
    with device() as gpu:
        properties = gpu.cupy.cuda.runtime.getDeviceProperties(gpu.cupy.cuda.Device().id)
        print(f"{properties['name'].decode()}, {properties['multiProcessorCount']} multiprocessors")
        for name in names:
            print(name)
            figures: list[Figure] = importlib.import_module(f"benchmarks.gpu.{name}").run(gpu, large=True)
            for figure in figures:
                line = f"  {figure.name:<44} {figure.value:>10.4g} {figure.unit:<16} {figure.note}"
                print(line.rstrip(), flush=True)


if __name__ == "__main__":
    main()
