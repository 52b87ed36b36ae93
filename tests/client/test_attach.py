"""Attaching to real daemons, and everything that must refuse it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.ipc.daemons import (
    WEIGHTS,
    ZEROS,
    Daemon,
    StartDaemon,
    spike,
)


def test_the_package_exports_attach_its_error_and_its_version() -> None:
    assert p2psgd.attach is attach
    assert p2psgd.TrainerError is TrainerError
    assert p2psgd.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        p2psgd.nothing  # noqa: B018


def test_attach_gives_the_rounded_weights_by_name(daemon: Daemon) -> None:
    initial: dict[str, NDArray[Any]] = {
        "a": np.linspace(-1, 1, 6).reshape(2, 3),
        "b": np.array(0.5, dtype=np.float32),
    }
    with attach(initial, quantum=2.0**-10, label="x", control=daemon.path.parent) as link:
        assert (link.node, link.rank, link.world_size, link.quantum) == ("node-1", 1, 4, 2.0**-10)
        assert (link.steps, link.peer_steps, link.stopping) == (0, {}, False)
        assert link.weights.dtype == np.float32
        np.testing.assert_array_equal(
            link.weights,
            np.array([-1, -614 / 1024, -205 / 1024, 205 / 1024, 614 / 1024, 1, 0.5], dtype=np.float32),
        )
        assert {name: view.shape for name, view in link.tensors.items()} == {"a": (2, 3), "b": ()}
        np.testing.assert_array_equal(link.tensors["a"].ravel(), link.weights[:6])
        assert not link.residual.any()
        for array in (link.weights, link.residual, *link.tensors.values()):
            assert not array.flags.writeable
    assert daemon.host.proposal is not None
    assert daemon.host.proposal.label == "x"
    assert daemon.host.attached == [os.getpid()]
    assert daemon.host.left == [(True, "has finished")]


def test_a_node_that_does_not_know_its_share_says_who_can_tell_it(daemon: Daemon) -> None:
    daemon.host.rank_value = None
    with (
        attach({"w": np.zeros(WEIGHTS)}, control=daemon.path) as link,
        pytest.raises(TrainerError, match=r"does not know its rank: .* p2psgd node --rank i/n"),
    ):
        link.rank  # noqa: B018


def test_the_place_among_the_members_is_asked_for_whenever_it_is_wanted(daemon: Daemon, link: Link) -> None:
    assert link.view_rank() == (0, 1)
    daemon.host.view_rank_value = (2, 5)
    assert link.view_rank() == (2, 5)
    link.close()
    with pytest.raises(TrainerError, match="closed"):
        link.view_rank()


def test_a_later_trainer_needs_no_weights(daemon: Daemon) -> None:
    with pytest.raises(TrainerError, match="knows no run yet: attach a trainer with initial weights first"):
        attach(control=daemon.path)
    initial = np.linspace(-1, 1, WEIGHTS, dtype=np.float32)
    with attach({"w": initial}, control=daemon.path) as first:
        weights = first.weights
    with attach(control=daemon.path) as second:
        np.testing.assert_array_equal(second.weights, weights)
        assert list(second.tensors) == ["w"]


def test_another_run_is_refused_with_both_fingerprints(daemon: Daemon, link: Link) -> None:
    link.close()
    with pytest.raises(TrainerError, match=r"this daemon trains run \w{16}, not \w{16}"):
        attach(ZEROS + 1, control=daemon.path)


def test_precision_of_another_payload_is_refused_before_a_run_begins(daemon: Daemon) -> None:
    with pytest.raises(TrainerError, match="full_precision is for payload='ternary'"):
        attach(ZEROS, control=daemon.path, mode="owners", rounds=True, full_precision=["w"])
    with pytest.raises(TrainerError, match="knows no run yet"):
        attach(control=daemon.path)


def test_a_second_trainer_is_refused_by_the_pid_of_the_first(daemon: Daemon, link: Link) -> None:
    with pytest.raises(TrainerError, match=rf"another trainer \(pid {os.getpid()}\) is attached"):
        attach(ZEROS, control=daemon.path)
    assert link.send(spike(1, 2), 1) == 1


@pytest.mark.parametrize(
    ("initial", "options", "words"),
    [
        (ZEROS + np.nan, {}, "weight 0 of tensor 'weights' is nan"),
        (ZEROS + 9, {}, "is 9; initial weights are finite and within"),
        (ZEROS, {"quantum": 0.1}, "not a power of two"),
        (ZEROS, {"label": "x" * 201}, "at most 200 characters"),
        ({"x" * 201: ZEROS}, {}, "at most 200 characters"),
        ({f"{n}": np.ones(1) for n in range(16_385)}, {}, "at most 16384 items"),
    ],
)
def test_what_cannot_be_a_run_is_refused_before_a_daemon_is_asked(
    tmp_path: Path, initial: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(TrainerError, match=words):
        attach(initial, control=tmp_path, timeout_s=0, **options)


def test_a_variable_that_nothing_reads_is_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PSGD_CONTOL", str(tmp_path))
    with pytest.raises(TrainerError, match=r"no variable P2PSGD_CONTOL.* the nearest is P2PSGD_CONTROL;"):
        attach(ZEROS, timeout_s=0)


def test_without_a_daemon_attach_gives_up_after_its_time_and_says_how_to_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P2PSGD_CONTROL", raising=False)
    monkeypatch.setenv("P2PSGD_STATE", str(tmp_path))
    words = r"no daemon answers at .*: .*`p2psgd local --trainer .*`p2psgd node`.* P2PSGD_CONTROL=DIR"
    with pytest.raises(TrainerError, match=f"{words}; P2PSGD_ALONE=1 lets"):
        attach(ZEROS, timeout_s=0.1)
    with pytest.raises(TrainerError, match=f"{words}$"):
        attach(ZEROS, timeout_s=0.1, alone=False)
    with pytest.raises(TrainerError, match=f"{words}$"):  # with which it is refused
        attach(ZEROS, control=tmp_path, timeout_s=0.1)


def test_attach_waits_for_a_daemon_that_is_just_starting_and_says_so_once(
    tmp_path: Path, start_daemon: StartDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    daemons: list[Daemon] = []
    starter = threading.Timer(0.1, lambda: daemons.append(start_daemon()))
    starter.start()
    with attach(ZEROS, control=tmp_path / "1") as link:
        assert link.node == "node-1"
    starter.join()
    (line,) = capfd.readouterr().err.splitlines()
    where = tmp_path / "1" / "control.sock"
    assert line.startswith(f"p2psgd: no daemon answers at {where} yet: waiting up to 30 s for one; ")
    assert "P2PSGD_CONTROL=DIR" in line


def test_attaching_and_detaching_keeps_no_descriptor(daemon: Daemon) -> None:
    attach(ZEROS, control=daemon.path).close()
    daemon.call(lambda: None)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with attach(ZEROS, control=daemon.path) as link:
            link.send(spike(1, 2), 1)
            with pytest.raises(TrainerError, match="another trainer"):
                attach(ZEROS, control=daemon.path)
        del link
    daemon.call(lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_trainer_can_truncate_what_the_daemon_has_mapped(daemon: Daemon) -> None:
    before = set(os.listdir("/proc/self/fd"))  # an interrupted link of another test may have left some
    with attach(ZEROS, control=daemon.path) as link:
        found = 0
        for entry in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(FileNotFoundError):
                if "memfd:p2psgd" in os.readlink(f"/proc/self/fd/{entry}"):
                    found += 1
                    with pytest.raises(PermissionError):
                        os.ftruncate(int(entry), 0)
        assert found
        assert link.send(spike(1, 2), 1) == 1
