"""The exported file holds the replica, by tensor."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import p2psgd
from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.cli.weights_file import export_weights, make_arrays, write_arrays
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests.daemons import P2PSGD, Daemon, all_stopped, until
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
            assert export_weights(client, tmp_path / "weights.npz").weights == 10
            command = [*P2PSGD, "export", "again.npz", "--state", "node", "--json"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
            status = daemons[0].status() or {}
            told = {
                "file": "again.npz",
                "weights": 10,
                "digest": status["digest"],
                "buffers": 0,
                "steps": None,
            }
            assert json.loads(done.stdout) == told
            with pytest.raises(UsageError, match="cannot be written to"):
                export_weights(client, tmp_path / "absent" / "weights.npz")
    with np.load(tmp_path / "weights.npz") as exported:
        assert list(exported) == ["a", "b"]
        assert (exported["a"] == 0.5).all()
        assert exported["b"].tolist() == [0.0, 0.5, 0.0, 0.0]
    assert sorted(path.name for path in tmp_path.glob("*weights*")) == ["weights.npz"]


@pytest.mark.long
def test_the_program_that_makes_pytorch_s_own_file_is_given(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    done = subprocess.run(
        [*P2PSGD, "export", "it's.pt"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    program = done.stderr.partition("this makes it's.pt of it: python ")[2]
    safetensors.numpy.save_file({"a": np.ones(3, np.float32)}, tmp_path / "it's.safetensors")
    subprocess.run([sys.executable, *shlex.split(program)], cwd=tmp_path, check=True)
    assert torch.load(tmp_path / "it's.pt")["a"].tolist() == [1.0, 1.0, 1.0]


def test_a_trainer_with_other_weights_goes_on_with_those_of_its_node(tmp_path: Path) -> None:
    """As a script does that loads what it has saved itself before it attaches, or that has no seed."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    place = tmp_path / "node"
    with all_stopped([Daemon(place, "--peers", str(hosts), "--listen", f"127.0.0.1:{port}")]) as daemons:
        with p2psgd.attach(np.full(3, 0.5), control=place) as link:
            link.send(np.ones(3, np.float32), threshold=2**19)
        for _ in range(2):
            with p2psgd.attach(np.full(3, 7.0), control=place) as link:
                assert link.weights.tolist() == [1.0, 1.0, 1.0]
                assert link.steps == 1
            daemons[0].stop()
            daemons[0] = Daemon(place, "--peers", str(hosts), "--listen", f"127.0.0.1:{port}")
        with pytest.raises(TrainerError, match=r"this node takes part in run .* this trainer is for run"):
            p2psgd.attach(np.full(4, 0.5), control=place)
    assert "begins with other weights than its run" in (place / "events.jsonl").read_text()


def test_buffers_and_second_names_that_a_script_keeps_are_exported_from_a_node_and_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    state = tmp_path / "node"
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    kept = {
        "steps": 7,
        "buffer:norm.mean": np.array([1.5, 2.5], np.float64),
        "buffer:norm.count": np.array(3, np.int64),
        "buffer:a": np.zeros(3),  # a tensor has that name
        "alias:tied": "a",
        "alias:lost": "nothing",
        "alias:odd": 4,
        "other": np.ones(5),
    }
    written = "10 weights with digest [0-9a-f]{16} and 2 buffers that this node's script kept at step 7"
    with all_stopped([Daemon(state, "--peers", str(hosts), "--listen", f"127.0.0.1:{port}")]) as daemons:
        with p2psgd.attach({"a": np.full((2, 3), 0.5), "b": np.zeros(4)}, control=state) as link:
            link.keep(lambda: kept)
        with ControlClient(control_path(state)) as client:
            assert re.fullmatch(written, str(export_weights(client, tmp_path / "running.npz")))
        daemons[0].stop()
    stopped = tmp_path / "stopped.safetensors"
    command = [sys.executable, "-m", "p2psgd", "checkpoint", "export", str(stopped), "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(f"{written} written to {stopped}\n", done.stdout)
    for arrays in (dict(np.load(tmp_path / "running.npz")), safetensors.numpy.load_file(stopped)):
        assert sorted(arrays) == ["a", "b", "norm.count", "norm.mean", "tied"]
        assert (arrays["a"] == 0.5).all()
        assert (arrays["tied"] == arrays["a"]).all()
        assert arrays["norm.mean"].tolist() == [1.5, 2.5]
        assert int(arrays["norm.count"]) == 3


def test_a_model_of_5000_tensors_trains_on_two_nodes_restarts_and_is_exported(tmp_path: Path) -> None:
    ports = free_ports(2)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
    places = [tmp_path / "node-0", tmp_path / "node-1"]
    common = ("--peers", str(hosts), "--failure-timeout", "2")
    options = [(*common, "--listen", f"127.0.0.1:{port}") for port in ports]
    names = [f"model.layers.{number // 7}.mlp.experts.{number % 7}.weight" for number in range(5000)]
    initial = {name: np.full((2, 1), number / 8192, np.float32) for number, name in enumerate(names)}
    delta = np.zeros(10_000, np.float32)
    delta[1::2] = 2.0
    with all_stopped([Daemon(place, *own) for place, own in zip(places, options, strict=True)]) as daemons:
        with (
            p2psgd.attach(initial, control=places[0]) as link,
            p2psgd.attach(initial, control=places[1]) as other,
        ):
            assert link.send(delta, threshold=2**20) == 5000
            until(lambda: other.receive() and (other.weights == link.weights).all(), "its update has come")
            run = daemons[0].status()["run"]  # type: ignore[index]
            assert run["tensors"] == 5000
        daemons[0].stop()
        daemons[0] = Daemon(places[0], *options[0])
        with p2psgd.attach(control=places[0]) as link:  # to the run of its checkpoint
            assert list(link.tensors) == names
            assert link.steps == 1
            assert link.tensors[names[8]].tolist() == [[8 / 8192], [1 + 8 / 8192]]
        with ControlClient(control_path(places[1])) as client:
            assert export_weights(client, tmp_path / "weights.safetensors").weights == 10_000
    exported = safetensors.numpy.load_file(tmp_path / "weights.safetensors")
    assert set(exported) == set(names)
    assert exported[names[4999]].tolist() == [[4999 / 8192], [1 + 4999 / 8192]]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_tensors_keep_their_names_whatever_they_are(tmp_path: Path, suffix: str) -> None:
    path, tensors = tmp_path / f"weights.{suffix}", (("file", (2,)), ("a/b c", ()), ("allow_pickle", (1, 1)))
    write_arrays(path, make_arrays(np.array([-2.0, 0.25, 0.5, 0.75], np.float32), tensors=tensors))
    weights = safetensors.numpy.load_file(path) if suffix == "safetensors" else dict(np.load(path))
    assert weights["file"].tolist() == [-2.0, 0.25]
    assert weights["a/b c"].shape == ()
    assert weights["allow_pickle"].tolist() == [[0.75]]
