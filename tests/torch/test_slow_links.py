"""A trainer whose only link is slow goes on: its steps are added up, and none is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.daemons import Daemon, all_stopped, assert_replicas_identical, until
from tests.lan import Lan
from tests.torch.needed import torch

TRAINER = Path(__file__).with_name("adding_trainer.py")
STEPS = 300
RATE = "500kbit"  # 0.3 s for the update of a step, which takes some milliseconds

assert torch.__version__  # the trainers need it


@pytest.mark.root
def test_a_trainer_goes_on_while_its_only_link_is_slow_and_no_step_is_lost(tmp_path: Path) -> None:
    hosts, notes = tmp_path / "hosts.txt", [tmp_path / f"{number}.npz" for number in range(2)]
    with Lan(2, rate=RATE) as lan, all_stopped([]) as daemons:
        hosts.write_text("\n".join(lan.addresses) + "\n")
        for number in range(2):
            command = f"{sys.executable} -P {TRAINER} {STEPS} {notes[number]}"
            daemons.append(
                Daemon(
                    tmp_path / f"host-{number}",
                    *("--peers", str(hosts), "--listen", "0.0.0.0:7315", "--insecure-plaintext"),
                    *("--trainer", command),
                    within=lan.within(number),
                )
            )
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert_replicas_identical(daemons)
        statuses = [daemon.status() for daemon in daemons]
        until(lambda: all(path.exists() for path in notes), "the trainers have written their notes")
    noted = [np.load(path) for path in notes]
    for status, each in zip(statuses, noted, strict=True):
        assert status is not None
        assert status["trainer"]["steps"] == status["compression"]["total"]["steps"] == each["steps"] == STEPS
        assert each["all_came"]
        assert each["waited_s"] == 0
        assert each["sends"] < STEPS / 3
    first, second = noted
    np.testing.assert_array_equal(first["replica"], second["replica"])
    assert first["replica"].any()
    kept = first["replica"] + first["residual"] + second["residual"]
    np.testing.assert_allclose(kept, first["made"] + second["made"], rtol=0, atol=1e-4)
