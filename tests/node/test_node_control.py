"""What a node says to a trainer of another run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.first_weights import common_start
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.ipc.part import Part, label_of
from p2psgd.ipc.run_proposal import propose
from p2psgd.node.control import NodeControl


@pytest.mark.parametrize(
    ("mode", "label", "known", "offered", "advice"),
    [
        ("ring-dense", "", "no label, async mode", "no label, ring-dense mode", " and --mode async"),
        ("async", "mine", "no label", "mine", ""),
    ],
)
def test_a_trainer_of_another_run_is_told_both_and_their_modes_if_they_differ(
    mode: str, label: str, known: str, offered: str, advice: str
) -> None:
    proposal, coordinates = propose(np.zeros(3, np.float32), quantum=2.0**-20, label="")
    spec = RunSpec(
        proposal.tensors,
        proposal.quantum_log2,
        "async",
        "",
        hash_coordinates(coordinates),
        proposal.two_nodes,
    )
    replica = SimpleNamespace(spec=spec)
    options = SimpleNamespace(state=Path("/srv/my node"), part=None)
    node = SimpleNamespace(_node=SimpleNamespace(run=SimpleNamespace(replica=replica), options=options))
    words = [
        f"this node takes part in run {spec.fingerprint.hex()[:16]} ({known}), this trainer is for run ",
        f" ({offered}): start it with the recipe of that run{advice}, or start another node for it, with "
        "another --state, or stop this node and delete its state: rm -rf '/srv/my node/run' "
        "'/srv/my node/votes.json'",
    ]
    with pytest.raises(TrainerError, match="[0-9a-f]{16}".join(map(re.escape, words))):
        NodeControl.define_run(
            node,  # type: ignore[arg-type]
            dataclasses.replace(proposal, mode=mode, label=label),
            coordinates,
        )


@pytest.mark.parametrize(
    ("label", "its"), [("", "a whole model"), (label_of("", Part(0, 2), "cut over 2 ranks"), "part 0/2")]
)
def test_the_daemon_of_a_part_refuses_what_is_not_that_part(label: str, its: str) -> None:
    proposal, coordinates = propose(np.zeros(3, np.float32), quantum=2.0**-20, label=label)
    options = SimpleNamespace(state=Path("/srv/node/part-0"), part=Part(0, 3))
    node = SimpleNamespace(_node=SimpleNamespace(run=None, options=options))
    with pytest.raises(TrainerError, match=f"this daemon is of part 0/3, and its trainer holds {its}: start"):
        NodeControl.define_run(node, proposal, coordinates)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["async", "ring-dense"])
def test_where_first_weights_have_not_come_a_trainer_with_weights_of_its_own_is_refused(way: str) -> None:
    """It would train from zeros, and nothing would say so."""
    initial = {"w": np.ones(3, np.float32)}
    proposal, coordinates = propose(initial, quantum=2.0**-20, label="", mode=way)
    _, start = propose(common_start(initial, 2.0**-20), quantum=2.0**-20, label="", mode=way)
    spec = RunSpec(
        proposal.tensors,
        proposal.quantum_log2,
        way,
        "",
        hash_coordinates(start),
        proposal.two_nodes,
    )
    replica = SimpleNamespace(spec=spec, lattice=SimpleNamespace(coordinates=start))
    options = SimpleNamespace(state=Path("/srv/node"), part=None)
    noted: list[str] = []
    inner = SimpleNamespace(
        run=SimpleNamespace(replica=replica),
        options=options,
        node_log=SimpleNamespace(note=lambda kind, words: noted.append(kind)),
    )
    node = SimpleNamespace(_node=inner, trainer=SimpleNamespace(came=lambda: None))
    with pytest.raises(TrainerError, match=r'say initial="first" here as well, or .* delete .*/srv/node/run'):
        NodeControl.define_run(node, proposal, coordinates)  # type: ignore[arg-type]
    replica.lattice.coordinates = coordinates + 1
    NodeControl.define_run(node, proposal, coordinates)  # type: ignore[arg-type]
    assert noted == ["trainer"]
