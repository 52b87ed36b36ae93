"""The run that the nodes will train: its size, its mode and its fingerprint, as far as they were given."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2psgd.base.errors import UsageError
from p2psgd.client.shard_counts import with_counts
from p2psgd.core.run_spec import RunSpec, hash_coordinates, name_run
from p2psgd.ipc.run_proposal import propose
from p2psgd.net.handshake import DOCTOR, RUN_UNKNOWN, clock_incarnation
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.initial import starting_weights
from p2psgd.recipes.recipe import load_recipe
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello
from p2psgd.wire.mode import ASYNC, Mode, parse_mode


@dataclass(frozen=True, slots=True)
class Intended:
    """A run before it is begun. `weights` is None if no size was given, `spec` is known of a recipe only."""

    weights: int | None = None
    mode: Mode = ASYNC
    spec: RunSpec | None = None

    def greeting(self, node: int, name: str) -> Hello:
        """Make the HELLO of a doctor for this run, with the time at which it is made."""
        spec = self.spec
        return Hello(
            protocol=PROTOCOL_VERSION,
            node=node,
            incarnation=clock_incarnation(time.time()),
            name=name,
            run=RUN_UNKNOWN if spec is None else spec.fingerprint,
            weights=self.weights or 1,
            quantum_log2=0 if spec is None else spec.quantum_log2,
            mode=DOCTOR if spec is None else f"{DOCTOR} {spec.mode}",
            label="" if spec is None else spec.label,
            share="",
        )

    @property
    def words(self) -> str:
        """The run's name and size for people; empty unless a recipe was given."""
        spec = self.spec
        if spec is None:
            return ""
        return f"{name_run(spec.fingerprint, spec.label, spec.mode)}, {spec.weights:,} weights"


def intended_run(weights: int | None, recipe: str | None, initial: Path | None = None) -> Intended:
    """Make the run of a recipe as its trainer would: read its data, and the file `initial`.

    Raises UsageError if `weights` and `recipe` are both given, or one of the three cannot be used.
    """
    if weights is not None and recipe is not None:
        raise UsageError("--weights and --recipe exclude each other: a recipe says how large its net is")
    if recipe is None:
        if initial is not None:
            raise UsageError("--initial holds the weights of a recipe's net: give --recipe too")
        return Intended(weights)
    loaded = load_recipe(recipe)
    dataset = load_data_of(loaded)
    shape = net_shape(loaded, dataset)
    tensors, label = dict[str, Any](starting_weights(loaded, shape, initial)), loaded.label
    if dataset.shards is not None:
        tensors, label = with_counts(tensors, label, dataset.shards.list, loaded.run.trains.word)
    proposal, coordinates = propose(
        tensors,
        quantum=loaded.quantum,
        label=label,
        two_nodes=loaded.run.two_nodes,
        mode=loaded.run.trains.word,
    )
    fields = (proposal.tensors, proposal.quantum_log2, proposal.mode, proposal.label)
    spec = RunSpec(*fields, hash_coordinates(coordinates), proposal.two_nodes)
    return Intended(spec.weights, parse_mode(spec.mode), spec)
