"""List the trainings that are run: tasks, ways, and which of them with how many nodes and seeds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

SEARCH_SEED: Final = 1
SEEDS: Final = (1, 2, 3)
MAIN: Final = ("one", "ddp", "diloco-10", "sparseloco-10", "p2psgd", "p2psgd-plain", "p2psgd-3", "p2psgd-15")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, its data and its training. `batches`: of all nodes together, `batch` samples each.

    `width`, `layers` and `context` are those of the GPT; the net for digits has its own. `ways` are run with
    all `nodes` and `seeds`, and `others` are searched with the first of these alone.
    """

    name: str
    model: str  # "gpt" or "digits"
    optimizer: str  # "adamw", "muon" with AdamW for what is no matrix, or "sgd", with momentum 0.9
    batch: int
    batches: int
    rates: tuple[float, ...]  # of the search, rising; it begins with the three in the middle
    width: int = 0
    layers: int = 0
    context: int = 0
    nodes: tuple[int, ...] = (4,)  # that the ways of several nodes are run with
    seeds: tuple[int, ...] = SEEDS
    ways: tuple[str, ...] = MAIN
    others: tuple[str, ...] = ()


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
    """A training. `rate` None: the best one of the search with these nodes, once that is known."""

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
        task, way = asdict(TASKS[self.task]), WAYS[self.way]
        del task["seeds"], task["ways"], task["others"]
        return task | {
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
    others=("powersgd", "sparseloco-5", "p2psgd-outer-10"),
)
TASKS: Final = {
    task.name: task
    for task in (
        _GPT,
        replace(
            _GPT,
            name="gpt-0.14M-muon",
            optimizer="muon",
            rates=(0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3),
            ways=("one", "ddp", "p2psgd"),
            others=("p2psgd-horizon", "p2psgd-own", "p2psgd-plain"),
        ),
        replace(
            _GPT,
            name="gpt-0.5M",
            width=128,
            batches=3000,
            rates=(0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3),
            nodes=(4, 8),
            others=(
                *("powersgd", "diloco-30", "sparseloco-5", "sparseloco-30"),
                *("p2psgd-slow", "p2psgd-rounds-5", "p2psgd-rounds-15"),
            ),
        ),
        replace(
            _GPT,
            name="gpt-3M",
            width=256,
            layers=4,
            batches=1000,
            rates=(0.25e-3, 0.5e-3, 1e-3, 2e-3),
            seeds=(1,),
            others=(),
        ),
        Task(
            name="digits-cnn",
            model="digits",
            optimizer="sgd",
            batch=16,
            batches=1800,
            rates=(0.01, 0.02, 0.04, 0.08, 0.16),
            nodes=(4, 8),
            others=("powersgd",),
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
        Way(name="diloco-10", label="DiLoCo H=10", method="diloco", options={"round_steps": 10}),
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
            options={"round_steps": 10, "density": 1 / 32},
        ),
        Way(
            name="sparseloco-30",
            label="SparseLoCo H=30",
            method="sparseloco",
            options={"round_steps": 30, "density": 1 / 32},
        ),
        Way(name="p2psgd", label="p2psgd", method="p2psgd"),
        Way(name="p2psgd-plain", label="p2psgd plain", method="p2psgd", options=PLAIN),
        Way(name="p2psgd-own", label="p2psgd, no horizon", method="p2psgd", options={"run_horizon": False}),
        Way(
            name="p2psgd-horizon",
            label="p2psgd, no own residual",
            method="p2psgd",
            options={"own_residual": False},
        ),
        Way(name="p2psgd-3", label="p2psgd H=3", method="p2psgd", options={"local_steps": 3}),
        Way(name="p2psgd-15", label="p2psgd H=15", method="p2psgd", options={"local_steps": 15}),
        Way(name="p2psgd-slow", label="p2psgd, a slow node", method="p2psgd-slow"),
        *(
            Way(
                name=f"p2psgd-rounds-{steps}",
                label=f"p2psgd H={steps}, in rounds",
                method="p2psgd",
                options={"mode": "ring", "local_steps": steps},
            )
            for steps in (5, 15)
        ),
        Way(
            name="p2psgd-outer-10",
            label="p2psgd H=10, outer step",
            method="p2psgd",
            options={
                "mode": "owners",
                "rounds": True,
                "rule": "nesterov",
                "local_steps": 10,
                "payload": "ternary",
            },
        ),
    )
}


def first_rates(task: str) -> tuple[float, ...]:
    """Return the three rates that every way tries; the others follow where the best is at the edge."""
    rates = TASKS[task].rates
    middle = len(rates) // 2
    return rates[middle - 1 : middle + 2]


def search(task: str, way: str, nodes: int) -> list[Case]:
    """Return the cases that the rate of a way is chosen by, the three in the middle first."""
    first = first_rates(task)
    rates = [*first, *(rate for rate in TASKS[task].rates if rate not in first)]
    return [Case(task=task, way=way, nodes=nodes, seed=SEARCH_SEED, rate=rate) for rate in rates]


def _cases() -> list[Case]:
    """Return each case once, by task; of a task first all searches, then other seeds."""
    found = []
    for task in TASKS.values():
        ways = [
            (way, nodes) for nodes in (1, *task.nodes) for way in task.ways if WAYS[way].alone == (nodes == 1)
        ]
        found += [case for way, nodes in ways for case in search(task.name, way, nodes)]
        found += [
            Case(task=task.name, way=way, nodes=nodes, seed=seed, rate=None)
            for seed in task.seeds
            if seed != SEARCH_SEED
            for way, nodes in ways
        ]
        for way in task.others:
            found += search(task.name, way, task.nodes[0])
    return found


CASES: Final = tuple(_cases())
