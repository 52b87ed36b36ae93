"""Runs the simulator: `python -m tests.sim [--seed N | --seeds A:B] [--mutant NAME] [--mutants] [--trace]`

`--ring` for the seeds in ring mode, `--owners` for those in mode `owners`, `--closure` for those in mode
`closure`, `--liar` for those with a liar.
`--crowd NODES --rounds ROUNDS` runs many nodes in rounds of owners that come and go.
"""

from __future__ import annotations

import argparse
import os
import sys

from p2psgd.wire.messages import MEMBERS_MAX
from tests.sim.family import ASYNC, CLOSURE, LIAR, OWNERS, RING, Family
from tests.sim.mutants import mutated
from tests.sim.outcome import Outcome
from tests.sim.owners.churn import CROWD_MIN, run_crowd
from tests.sim.scenario import NODES_MAX, NODES_MIN, Scenario
from tests.sim.shrinking import shrink
from tests.sim.sweep import Summary, hunt_all, median_first, sweep
from tests.sim.world import simulate

LAST_LINES = 60  # of the trace of a shrunk failure
SHOWN_MAX = 20  # failing seeds that are named
TOLD_EVERY = 500  # seeds


def seed_range(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (first.isdigit() and colon and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B")
    return range(int(first), int(end))


def describe(scenario: Scenario) -> str:
    rates = ", ".join(f"{rate:.2g}" for rate in scenario.rates)
    what = [
        f"  {scenario.nodes} nodes, {scenario.coordinates} coordinates, updates a second: {rates}",
        f"  latency {scenario.latency_s * 1e3:.3g} ms, {scenario.bytes_per_s:.3g} bytes/s, "
        f"credit {scenario.credit_bytes} bytes, {scenario.chaos_s:.1f} s until all is healed",
        *([] if scenario.ring is None else [f"  {scenario.ring!r}"]),
        *(f"  {fault!r}" for fault in scenario.faults),
    ]
    return "\n".join(what)


def explain(seed: int, family: Family, nodes: int | None) -> None:
    """Print a failing seed's smallest form and the end of its trace."""
    scenario = family.draw(seed, nodes=nodes)
    outcome = simulate(scenario)
    print(f"seed {seed} violates {outcome.violation}")
    small, tried = shrink(scenario, outcome.name)
    outcome = simulate(small, tracing=True)
    print("\n".join(outcome.trace[-LAST_LINES:]))
    print(
        f"shrunk in {tried} runs to {len(small.faults)} of {len(scenario.faults)} faults:\n{describe(small)}"
    )
    print(f"which violates {outcome.violation}")


def report(summary: Summary, *, processes: int) -> None:
    """Print what many seeds came to."""
    by_wall, by_core = (summary.virtual_s / each for each in (summary.real_s, summary.cpu_s))
    print(
        f"{summary.seeds} seeds, {len(summary.failed)} violations: {summary.virtual_s:,.0f} virtual seconds "
        f"in {summary.real_s:,.1f} s of {processes} processes ({by_wall:,.0f} times real time, "
        f"{by_core:,.0f} on each core), {summary.events:,} events, {summary.updates:,} updates"
    )
    print(f"slowest convergence after the last disturbance: {summary.healing_s_max:.1f} s")
    for what, count in sorted(summary.sightings.items()):
        print(f"  {count:>10,}  {what}")
    for what in summary.unseen:
        print(f"  {'never':>10}  {what}")


def run_one(seed: int, family: Family, nodes: int | None, *, tracing: bool) -> bool:
    """One seed; whether nothing was found."""
    outcome = simulate(family.draw(seed, nodes=nodes), tracing=tracing)
    if tracing:
        print("\n".join(outcome.trace))
    if outcome.violation is not None:
        explain(seed, family, nodes)
        return False
    print(
        f"seed {seed} holds: {outcome.virtual_s:.1f} virtual seconds, {outcome.events:,} events, "
        f"{outcome.updates:,} updates, equal {outcome.healing_s:.1f} s after the last disturbance"
    )
    return True


def run_mutants(seeds: range, family: Family, nodes: int | None) -> bool:
    """Every mutant through all seeds; whether all died."""
    hunts = []
    for found in hunt_all(seeds, family=family, nodes=nodes):
        hunts.append(found)
        first = "LIVES" if found.first is None else f"first at {found.first:>4}"
        by = ", ".join(f"{name} {count}" for name, count in found.invariants.most_common())
        print(
            f"{found.name:<30} died in {found.died:>4} of {found.seeds:>4} seeds, {first}  ({by})", flush=True
        )
    print(f"{len(hunts)} mutants, median of the first deaths: seed {median_first(hunts):.0f} of the range")
    return all(found.first is not None for found in hunts)


def tell(summary: Summary, outcome: Outcome) -> None:
    """A violation at once, and now and then how far it is."""
    if outcome.violation is not None and len(summary.failed) <= SHOWN_MAX:
        print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
    if summary.seeds % TOLD_EVERY == 0:
        print(
            f"{summary.seeds} seeds in {summary.real_s:.0f} s, {len(summary.failed)} violations", flush=True
        )


def run_many(seeds: range, family: Family, nodes: int | None, processes: int, *, mutant: str | None) -> bool:
    """Many seeds; whether nothing was found and everything seen that must occur."""
    summary = sweep(seeds, family=family, nodes=nodes, processes=processes, progress=tell)
    report(summary, processes=processes)
    if summary.failed:
        explain(summary.failed[0].seed, family, nodes)
    return not summary.failed and (mutant is not None or not summary.unseen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="this one run")
    which.add_argument("--seeds", type=seed_range, default=range(100), metavar="A:B", help="0:100 by default")
    which.add_argument(
        "--crowd", type=int, metavar="NODES", help="a run of this many nodes in rounds of owners"
    )
    parser.add_argument("--rounds", type=int, default=100, help="of a crowd; 100 by default")
    parser.add_argument("--nodes", type=int, help="so many in every run; 3 to 7 by the seed otherwise")
    families = parser.add_mutually_exclusive_group()
    families.add_argument("--ring", action="store_true", help="seeds in ring mode")
    families.add_argument("--owners", action="store_true", help="seeds in mode owners")
    families.add_argument("--closure", action="store_true", help="seeds in mode closure")
    families.add_argument("--liar", action="store_true", help="seeds with a liar among the nodes")
    names = [", ".join(family.mutants) for family in (ASYNC, RING, OWNERS, LIAR, CLOSURE)]
    parser.add_argument(
        "--mutant",
        metavar="NAME",
        help=f"with this bug, of {names[0]}; with --ring {names[1]}; with --owners {names[2]}; "
        f"with --liar {names[3]}; with --closure {names[4]}",
    )
    parser.add_argument("--mutants", action="store_true", help="every mutant in turn; all must die")
    parser.add_argument("--trace", action="store_true", help="print all that happens in the run of --seed")
    parser.add_argument("--processes", type=int, default=1, help="cores to use; 0: all")
    arguments = parser.parse_args()
    if arguments.crowd is not None:
        if not CROWD_MIN <= arguments.crowd <= MEMBERS_MAX - CROWD_MIN:  # some join
            parser.error(f"a crowd has {CROWD_MIN} to {MEMBERS_MAX - CROWD_MIN} nodes")
        run_crowd(arguments.crowd, arguments.rounds)
        return
    if arguments.nodes is not None and not NODES_MIN <= arguments.nodes <= NODES_MAX:
        parser.error(f"a run has {NODES_MIN} to {NODES_MAX} nodes")
    other = CLOSURE if arguments.closure else ASYNC
    family = RING if arguments.ring else OWNERS if arguments.owners else LIAR if arguments.liar else other
    if arguments.mutant not in {None, *family.mutants}:
        parser.error(f"mutant {arguments.mutant!r} is not known; there are {', '.join(family.mutants)}")
    if arguments.mutants:
        good = run_mutants(arguments.seeds, family, arguments.nodes)
    else:
        with mutated(() if arguments.mutant is None else family.mutants[arguments.mutant]):
            if arguments.seed is not None:
                good = run_one(arguments.seed, family, arguments.nodes, tracing=arguments.trace)
            else:
                processes = arguments.processes or os.cpu_count() or 1
                good = run_many(arguments.seeds, family, arguments.nodes, processes, mutant=arguments.mutant)
    sys.exit(not good)


if __name__ == "__main__":
    main()
