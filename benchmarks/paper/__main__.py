"""Runs the cases that have no figures yet, and writes docs/explanation/results.*."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.paper import figures, plot
from benchmarks.paper.cases import CASES, Case
from benchmarks.paper.clustered import run_nodes
from benchmarks.paper.figures import Figures
from benchmarks.paper.plain import train_plainly
from benchmarks.results import page
from p2psgd.cli.local.cluster import THREAD_VARIABLES
from p2psgd.recipes.datasets import BANKS, CONTEXT, STATES, Dataset, load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.initial import load_initial
from p2psgd.recipes.model import Vector, flat

INPUTS: Final = (2 * CONTEXT + 1) * BANKS
STARTS: Final = Path("build/paper")  # pre-trained weights, one file for each net and seed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help="this one, also if it has figures; may be given several times",
    )
    parser.add_argument("--list", action="store_true", help="the names of all cases, and no more")
    parser.add_argument("--page", action="store_true", help="only write page and pictures anew")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(names))
        return
    if not arguments.page:
        try:
            run_all([case for case in CASES if case.name in arguments.only] if arguments.only else _left())
        except KeyboardInterrupt:
            sys.exit(
                "interrupted: what was measured is kept, --page shows it, and the next run goes on there"
            )
    plot.draw(figures.read())
    page.write()


def run_all(cases: list[Case]) -> None:
    """Run the cases one after the other; each result is kept as soon as it is known."""
    whole, done, begin = sum(map(cost, cases)), 0.0, time.monotonic()
    print(f"{len(cases)} of {len(CASES)} cases to run, a minute or two each on two free cores", flush=True)
    for case in cases:
        print(f"{case.name} ...", flush=True)
        found = run(case)
        figures.keep(case, found)
        done += cost(case)
        left_s = (time.monotonic() - begin) * (whole - done) / done
        ratio = f", compression {found.ratio:,.0f}" if found.ratio else ""
        words = f"{100 * found.accuracy:.2f} %{ratio}, {found.training_s:.0f} s"
        print(f"{case.name}: {words}; {left_s / 60:.0f} minutes left", flush=True)


def run(case: Case) -> Figures:
    """In a directory of its own, which stays where something fails."""
    dataset, load = load_data_of(case.recipe), os.getloadavg()[0]
    start = pretrained(case)
    weights = flat(load_initial(start, net_shape(case.recipe, dataset)))
    digest = hashlib.blake2b(weights.tobytes(), digest_size=4).hexdigest()
    if case.nodes == 0:
        return replace(run_plainly(case, dataset, weights, load), start=digest)
    directory = Path(tempfile.mkdtemp(prefix=f"p2psgd-paper-{case.name}-"))
    try:
        recipe = directory / "recipe.toml"
        recipe.write_text(case.recipe_text, encoding="utf-8")
        report, curve = run_nodes(case.nodes, case.recipe, dataset, (recipe, start), directory)
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    except BaseException:
        print(f"{case.name} failed; the nodes' logs are in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)
    return figures.of_report(case, report, curve, load=load, start=digest)


def run_plainly(case: Case, dataset: Dataset, weights: Vector, load: float) -> Figures:
    """Plain SGD."""
    begin = time.monotonic()
    curve = train_plainly(case.recipe, dataset, weights)
    samples = case.recipe.epochs * len(dataset.train.labels)
    return Figures(
        digest=case.digest,
        weights=weights.size,
        accuracy=curve[-1][1],
        curve=curve,
        training_s=time.monotonic() - begin,
        samples=samples,
        steps=-(-samples // case.recipe.batch),
        load=load,
        where=figures.surroundings(),
    )


def pretrained(case: Case) -> Path:
    """The weights that a case starts from, with any number of nodes and any tau."""
    path = STARTS / f"{case.start}.npz"
    if not path.exists():
        STARTS.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".toml")
        file.write_text(case.recipe_text, encoding="utf-8")
        command = [sys.executable, "-m", "examples.strom2015.pretrain", str(file), str(path)]
        how = case.pretraining
        command += ["--part", f"{how.part}", "--epochs", f"{how.epochs}"]
        command += ["--learning-rate", f"{how.learning_rate}"]
        # One thread, so that the bits do not depend on how many processors there are.
        subprocess.run(command, check=True, env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"))
    return path


def cost(case: Case) -> float:
    """Return the relative length of a case: weights times samples."""
    return case.epochs * sum(above * below for below, above in pairwise((INPUTS, *case.hidden, STATES)))


def _left() -> list[Case]:
    known = figures.read()
    return [case for case in CASES if case not in known]


if __name__ == "__main__":
    main()
