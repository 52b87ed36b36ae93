"""The run that is to be trained, and the machines behind each line of the list of hosts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2psgd.client.shard_counts import with_counts
from p2psgd.core.run_spec import RunSpec, hash_coordinates, name_run
from p2psgd.errors import UsageError
from p2psgd.ipc.run_proposal import propose
from p2psgd.net.address import Address, UnknownNameError, hosts_of, is_own, look_up
from p2psgd.net.handshake import DOCTOR, RUN_UNKNOWN
from p2psgd.net.hosts import HOSTS_MAX, Hosts
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.initial import starting_weights
from p2psgd.recipes.recipe import load_recipe
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello
from p2psgd.wire.mode import ASYNC, Mode, parse_mode

# ----------------------------------------------------------------------------
# The run that is to be trained, as far as it was told: how large, in which mode, with which fingerprint.


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


# ----------------------------------------------------------------------------
# Lines that stand for several hosts, as names of services do: each host is met by itself.


async def each_host(hosts: Hosts, listening: Address, *, timeout_s: float) -> tuple[Address, ...]:
    """All to dial, at most HOSTS_MAX: lines as they are, and an address for each host of one that has
    several, this node left out.
    """
    found: dict[Address, None] = {}
    for line in hosts.peers:
        if line not in hosts.several:
            found[line] = None
            continue
        try:
            several = hosts_of(await look_up(line, timeout_s=timeout_s))
        except UnknownNameError:
            found[line] = None
            continue
        for host in several:
            if not any(is_own(each, [listening]) for each in host):
                found[host[0]] = None
    return tuple(found)[:HOSTS_MAX]
