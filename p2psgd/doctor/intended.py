"""The run that is to be trained, as far as it was told: how large, in which mode, with which fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2psgd.core.run_spec import RunSpec, hash_coordinates, name_run
from p2psgd.errors import UsageError
from p2psgd.ipc.proposal import propose
from p2psgd.net.greeting import DOCTOR, RUN_UNKNOWN
from p2psgd.trainer.data import load_data_of
from p2psgd.trainer.evaluation import net_shape
from p2psgd.trainer.initial import starting_weights
from p2psgd.trainer.recipe import load_recipe
from p2psgd.trainer.shard_counts import with_counts
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello
from p2psgd.wire.mode import ASYNC, Mode, parse_mode


@dataclass(frozen=True, slots=True)
class Intended:
    """`weights` None: not told. `spec` only of a recipe."""

    weights: int | None = None
    mode: Mode = ASYNC
    spec: RunSpec | None = None

    def greeting(self, node: int, name: str) -> Hello:
        """What a doctor of this run says first."""
        spec = self.spec
        return Hello(
            protocol=PROTOCOL_VERSION,
            node=node,
            incarnation=0,
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
        """For people; empty if nothing is known but the size."""
        spec = self.spec
        if spec is None:
            return ""
        return f"{name_run(spec.fingerprint, spec.label, spec.mode)}, {spec.weights:,} weights"


def intended_run(weights: int | None, recipe: str | None, initial: Path | None = None) -> Intended:
    """UsageError if both are given, or one that will not do. With a recipe its data are read, and the file
    `initial`, as the trainer would: what all nodes must agree on is known then.
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
