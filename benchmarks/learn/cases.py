"""List the trainings that are run: tasks, ways, and which of them with how many nodes and seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

SEARCH_NODES: Final = 4
SEARCH_SEED: Final = 1
SEEDS: Final = (1, 2, 3)
ROUND_STEPS: Final = 10  # own steps between two exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, its data and its training. `batches`: of all nodes together, `batch` samples each.

    `width`, `layers` and `context` are those of the GPT; the net for digits has its own.
    """

    name: str
    model: str  # "gpt" or "digits"
    optimizer: str  # "adamw" or "sgd", with momentum 0.9
    batch: int
    batches: int
    rates: tuple[float, ...]  # of the search, rising; it begins with the three in the middle
    width: int = 0
    layers: int = 0
    context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to train. `method` names the implementation; `options` go to it, or to p2psgd's `attach`."""

    name: str
    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def alone(self) -> bool:
        """Return whether it is one process."""
        return self.method == "one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training. `rate` None: the best one of the search, once that is known."""

    task: str
    way: str
    nodes: int
    seed: int
    rate: float | None

    @property
    def name(self) -> str:
        """For people and as a key: gpt-0.14M/ddp/4-nodes/seed-1/rate-0.002."""
        rate = "best" if self.rate is None else f"{self.rate:g}"
        return f"{self.task}/{self.way}/{self.nodes}-nodes/seed-{self.seed}/rate-{rate}"

    @property
    def searched(self) -> bool:
        """Return whether it is a part of the search for the rate."""
        return self.rate is not None

    def job(self, rate: float) -> dict[str, Any]:
        """Return what the trainer is given."""
        task, way = TASKS[self.task], WAYS[self.way]
        return asdict(task) | {
            "method": way.method,
            "options": way.options,
            "nodes": self.nodes,
            "seed": self.seed,
            "rate": rate,
        }

    def digest(self, rate: float) -> str:
        """Return a digest of the job; a kept result counts only while it is equal."""
        job = {key: value for key, value in self.job(rate).items() if key not in ("name", "rates")}
        return hashlib.blake2b(json.dumps(job, sort_keys=True).encode(), digest_size=4).hexdigest()


_GPT: Final = Task(
    name="gpt-0.14M",
    model="gpt",
    optimizer="adamw",
    batch=4,
    batches=2000,
    rates=(0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
    width=64,
    layers=2,
    context=64,
)
TASKS: Final = {
    task.name: task
    for task in (
        _GPT,
        replace(_GPT, name="gpt-0.5M", width=128, rates=(0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3)),
        replace(_GPT, name="gpt-3M", width=256, layers=4, rates=(0.25e-3, 0.5e-3, 1e-3, 2e-3, 4e-3)),
        Task(
            name="digits-cnn",
            model="digits",
            optimizer="sgd",
            batch=16,
            batches=1800,
            rates=(0.01, 0.02, 0.04, 0.08, 0.16),
        ),
    )
}
PLAIN: Final = {"own_residual": False, "run_horizon": False}
WAYS: Final = {
    way.name: way
    for way in (
        Way(name="one", label="one process", method="one"),
        Way(name="ddp", label="DDP", method="ddp"),
        Way(name="powersgd", label="PowerSGD", method="powersgd", options={"rank": 2, "whole_steps": 10}),
        Way(name="diloco-10", label="DiLoCo H=10", method="diloco", options={"round_steps": ROUND_STEPS}),
        Way(name="diloco-30", label="DiLoCo H=30", method="diloco", options={"round_steps": 30}),
        Way(
            name="sparseloco-5",
            label="SparseLoCo H=5",
            method="sparseloco",
            options={"round_steps": 5, "density": 1 / 32},
        ),
        Way(
            name="sparseloco-10",
            label="SparseLoCo H=10",
            method="sparseloco",
            options={"round_steps": ROUND_STEPS, "density": 1 / 32},
        ),
        Way(
            name="sparseloco-30",
            label="SparseLoCo H=30",
            method="sparseloco",
            options={"round_steps": 30, "density": 1 / 32},
        ),
        Way(name="p2psgd", label="p2psgd", method="p2psgd"),
        Way(name="p2psgd-plain", label="p2psgd plain", method="p2psgd", options=PLAIN),
        Way(
            name="p2psgd-local-10",
            label="p2psgd H=10",
            method="p2psgd",
            options={"local_steps": ROUND_STEPS},
        ),
    )
}
# Other lengths of a round, of the smallest task only. With H 5 SparseLoCo sends about as much as p2psgd.
OTHER_ROUNDS: Final = ("sparseloco-5", "diloco-30", "sparseloco-30")
MAIN: Final = tuple(name for name in WAYS if name not in OTHER_ROUNDS)


def first_rates(task: str) -> tuple[float, ...]:
    """Return the three rates that every way tries; the others follow where the best is at the edge."""
    rates = TASKS[task].rates
    middle = len(rates) // 2
    return rates[middle - 1 : middle + 2]


def search(task: str, way: str) -> list[Case]:
    """Return the cases that the rate of a way is chosen by, the three in the middle first."""
    nodes, first = 1 if WAYS[way].alone else SEARCH_NODES, first_rates(task)
    rates = [*first, *(rate for rate in TASKS[task].rates if rate not in first)]
    return [Case(task=task, way=way, nodes=nodes, seed=SEARCH_SEED, rate=rate) for rate in rates]


def _with_best_rate(task: str, ways: Iterable[str], nodes: int, seeds: Iterable[int]) -> list[Case]:
    found = []
    for seed in seeds:
        for way in ways:
            known = seed == SEARCH_SEED and nodes == (1 if WAYS[way].alone else SEARCH_NODES)
            if WAYS[way].alone == (nodes == 1) and not known:
                found.append(Case(task=task, way=way, nodes=nodes, seed=seed, rate=None))
    return found


def _cases() -> list[Case]:
    """Return each case once, the most telling ones first."""
    small, middle, large, digits = TASKS
    found = [case for task in (small, digits) for way in MAIN for case in search(task, way)]
    for task in (small, digits):
        for nodes in (1, 4):
            found += _with_best_rate(task, MAIN, nodes, SEEDS)
    for nodes in (2, 8):
        found += _with_best_rate(small, MAIN, nodes, SEEDS)
    found += [case for way in OTHER_ROUNDS for case in search(small, way)]
    found += [case for way in MAIN for case in search(middle, way)]
    for nodes in (1, 4):
        found += _with_best_rate(middle, MAIN, nodes, SEEDS)
    found += _with_best_rate(middle, MAIN, 8, SEEDS[:1])
    found += [case for way in MAIN for case in search(large, way)]
    return found


CASES: Final = tuple(_cases())
