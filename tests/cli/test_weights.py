"""The exported file holds the replica, by tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import p2psgd
from p2psgd.base.errors import UsageError
from p2psgd.cli.weights_file import export_weights, write_weights
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports


def test_the_weights_of_a_node_are_exported_by_name(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    options = ("--peers", str(hosts), "--listen", f"127.0.0.1:{port}")
    initial = {"a": np.full((2, 3), 0.5, np.float32), "b": np.zeros(4, np.float32)}
    with all_stopped([Daemon(tmp_path / "node", *options)]) as daemons:
        with p2psgd.attach(initial, control=tmp_path / "node") as link:
            delta = np.zeros(10, np.float32)
            delta[7] = 1.0
            link.send(delta, threshold=2**19)
            until(lambda: (daemons[0].status() or {})["updates"]["sent"] == 1, "the update is applied")
        with ControlClient(control_path(tmp_path / "node")) as client:
            assert export_weights(client, tmp_path / "weights.npz")[0] == 10
            with pytest.raises(UsageError, match="cannot be written to"):
                export_weights(client, tmp_path / "absent" / "weights.npz")
    with np.load(tmp_path / "weights.npz") as exported:
        assert list(exported) == ["a", "b"]
        assert (exported["a"] == 0.5).all()
        assert exported["b"].tolist() == [0.0, 0.5, 0.0, 0.0]
    assert sorted(path.name for path in tmp_path.glob("*weights*")) == ["weights.npz"]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_tensors_keep_their_names_whatever_they_are(tmp_path: Path, suffix: str) -> None:
    path, tensors = tmp_path / f"weights.{suffix}", (("file", (2,)), ("a/b c", ()), ("allow_pickle", (1, 1)))
    write_weights(path, np.array([-2.0, 0.25, 0.5, 0.75], np.float32), tensors=tensors)
    weights = safetensors.numpy.load_file(path) if suffix == "safetensors" else dict(np.load(path))
    assert weights["file"].tolist() == [-2.0, 0.25]
    assert weights["a/b c"].shape == ()
    assert weights["allow_pickle"].tolist() == [[0.75]]
