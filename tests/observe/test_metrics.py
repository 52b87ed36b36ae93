"""Metrics of statuses, read back by the parser that prometheus-client ships."""

from __future__ import annotations

import re

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from p2psgd.observe.metrics import LABEL_CHARACTERS_MAX, PEERS_MAX, TENSORS_MAX, Metrics
from p2psgd.observe.status import NodeStatus
from tests.observe.compressions import description
from tests.observe.statuses import bare, peer, ring, split, status, trainer


def families(node: NodeStatus) -> dict[str, Metric]:
    text = Metrics(lambda: node).text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], name: str, **labels: str) -> float | None:
    """Of the one sample of that name that has these labels; None without one."""
    samples = [sample for family in found.values() for sample in family.samples if sample.name == name]
    values = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    assert len(values) <= 1
    return values[0] if values else None


def test_a_training_nodes_figures_are_those_of_its_status() -> None:
    found = families(status(trainer=trainer(**split()), compression=description(), ready=True))
    assert value(found, "p2psgd_steps_total") == 1_000
    assert value(found, "p2psgd_loss") == 2.3456
    assert value(found, "p2psgd_ready") == 1
    assert value(found, "p2psgd_plaintext") == 1
    assert value(found, "p2psgd_certificate_left_seconds") is None
    assert value(found, "p2psgd_state", state="training") == 1
    assert value(found, "p2psgd_state", state="draining") == 0
    assert value(found, "p2psgd_step_seconds_total", part="computing") == 6.0
    assert value(found, "p2psgd_link_lag_updates", peer="node-1") == 0
    assert value(found, "p2psgd_updates_sent_total") == 1_000
    total = description().total
    assert value(found, "p2psgd_update_bytes_total", part="sign") == total.bits.sign / 8
    assert value(found, "p2psgd_dense_bytes_total") == 4 * 80_000 * total.steps


def test_a_certificate_shows_how_long_it_is_good_for() -> None:
    found = families(status(plaintext=False, tls={"run": "speech", "expires_s": -60}))
    assert value(found, "p2psgd_plaintext") == 0
    assert value(found, "p2psgd_certificate_left_seconds") == -60


def test_every_family_has_help_and_a_name_as_prometheus_wants_it() -> None:
    found = families(status(compression=description(), ring=ring()))
    own = [family for name, family in found.items() if name.startswith("p2psgd_")]
    assert len(own) > 40
    for family in own:
        assert re.fullmatch(r"p2psgd_[a-z][a-z_]*[a-z]", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert family.type in ("counter", "gauge")
        assert all(sample.name.endswith("_total") for sample in family.samples) == (family.type == "counter")


@pytest.mark.parametrize(
    "node",
    [
        bare("node-0"),
        status(run=None, updates=None, log=None),
        status(peers=[], trainer=trainer(loss=None)),
    ],
    ids=["hardly anything", "no run", "alone"],
)
def test_what_is_not_known_is_left_out(node: NodeStatus) -> None:
    assert value(families(node), "p2psgd_loss") in (None, 2.3456)
    assert value(families(node), "p2psgd_bits_per_index", window="all") is None


def test_a_ring_shows_its_round() -> None:
    found = families(status(ring=ring(waiting_for="waits for node-2")))
    assert value(found, "p2psgd_ring_round") == 1_234
    assert value(found, "p2psgd_ring_waiting") == 1


def test_peers_and_tensors_are_capped() -> None:
    peers = [peer(f"node-{number}", id=f"{number:016x}") for number in range(3 * PEERS_MAX)]
    row = description().model_dump()["tensors"][0]
    tensors = [{**row, "name": f"tensor-{number}", "weights": number} for number in range(3 * TENSORS_MAX)]
    found = families(status(peers=peers, compression={"tensors": tensors}))
    assert len(found["p2psgd_link_up"].samples) == PEERS_MAX
    assert len(found["p2psgd_tensor_indices"].samples) == TENSORS_MAX
    largest = {sample.labels["tensor"] for sample in found["p2psgd_tensor_indices"].samples}
    assert f"tensor-{3 * TENSORS_MAX - 1}" in largest


def test_two_peers_of_one_address_and_hostile_names_do_not_spoil_it() -> None:
    twice = [peer("10.0.0.1:7315", id=None), peer("10.0.0.1:7315", id=None)]
    hostile = peer('n"\n# HELP x\\' + "y" * 300, id="0000000000000007")
    found = families(status(peers=[*twice, hostile]))
    names = sorted(sample.labels["peer"] for sample in found["p2psgd_link_up"].samples)
    assert len(names) == 2
    assert names[1] == ('n"\n# HELP x\\' + "y" * 300)[:LABEL_CHARACTERS_MAX]
