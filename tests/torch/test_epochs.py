"""Epochs go on where the node was, with schedulers at the step that it has reached."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, wait_until
from tests.torch.models import flat, make_model
from tests.torch.needed import p2psgd_torch, torch

pytestmark = pytest.mark.long

OWN = list(range(1, 160, 4))  # samples of the second of four nodes, as which the test daemon starts
BATCH, EPOCHS = 4, 3
STEPS = len(OWN) // BATCH  # of an epoch


class Killed(Exception):
    """The script ends here, in the middle of anything."""


class Script:
    """A life of a script; `samples` are those that it has used."""

    def __init__(self, daemon: Daemon, kind: str, accumulate: int = 1) -> None:
        self.samples: list[int] = []
        self.rates: list[float] = []
        self.accumulate, self.kind = accumulate, kind
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.link = p2psgd_torch.attach(self.model, self.optimizer, control=daemon.path, run_horizon=False)
        data = torch.utils.data.TensorDataset(torch.arange(160))
        self.loader = torch.utils.data.DataLoader(
            data, batch_size=BATCH, sampler=self.link.sampler(data, shuffle=False)
        )
        total = EPOCHS * len(self.loader) // accumulate
        schedulers = torch.optim.lr_scheduler
        if kind == "step":
            self.scheduler = schedulers.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=total)
        else:
            self.scheduler = schedulers.StepLR(self.optimizer, 1, gamma=0.5)

    def run(self, steps: int | None = None) -> None:
        """Train to the end, or until this life has made `steps` steps and is killed."""
        options = {f"{self.kind}_scheduler": self.scheduler, "accumulate": self.accumulate}
        made = batches = 0
        for _ in self.link.epochs(EPOCHS, self.loader, **options):
            for (numbers,) in self.loader:
                self.samples += numbers.tolist()
                batches += 1
                for parameter in self.model.parameters():
                    parameter.grad = torch.full_like(parameter, 0.01)
                if batches % self.accumulate:
                    continue
                if steps is not None and made == steps:
                    raise Killed
                self.rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
                made += 1
                if self.kind == "step":
                    self.scheduler.step()
            if self.kind == "epoch":
                self.scheduler.step()

    def die(self) -> None:
        """End as by `kill -9`: no state is given."""
        self.link._link._keeping.make_state = None
        self.link._remove_hooks()
        self.link._link._client.close()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["step", "epoch"])
@pytest.mark.parametrize("killed_after", [1, 3, STEPS - 1, STEPS + 2])
def test_a_script_that_was_killed_goes_on_with_the_next_batch_at_the_right_rate(
    start_daemon: Any, kind: str, accumulate: int, killed_after: int
) -> None:
    whole = Script(start_daemon(1), kind, accumulate)
    whole.run()
    daemon = start_daemon(2)
    first = Script(daemon, kind, accumulate)
    with pytest.raises(Killed):
        first.run(killed_after)
    first.die()
    wait_until(lambda: not daemon.trainer_status()["attached"], "the daemon has seen its end")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = Script(daemon, kind, accumulate)
        assert second.link.steps == killed_after
        second.run()
    used = first.samples[: killed_after * accumulate * BATCH]  # of the steps that were made
    assert used + second.samples == whole.samples == EPOCHS * OWN
    assert first.rates + second.rates == pytest.approx(whole.rates)
    assert second.link._ended


def test_objects_that_are_kept_later_have_their_state_back(daemon: Daemon) -> None:
    first = Script(daemon, "epoch")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    first.link.keep(first.scheduler, scaler)
    take_step(first)
    first.scheduler.step()
    scaler.load_state_dict(scaler.state_dict() | {"scale": 16.0})
    first.link.close(finished=False)
    second = Script(daemon, "epoch")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with second.link as link:
        link.keep(second.scheduler)
        link.keep(scaler)
        assert second.scheduler.last_epoch == 1
        assert second.optimizer.param_groups[0]["lr"] == 0.05
        assert scaler.get_scale() == 16.0
    third = Script(daemon, "step")
    with third.link as link, pytest.raises(TrainerError, match="it is of StepLR, and here are OneCycleLR"):
        link.keep(third.scheduler)


def take_step(script: Script) -> None:
    for parameter in script.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    script.optimizer.step()


def test_epochs_end_early_when_the_daemon_asks_for_the_end(daemon: Daemon) -> None:
    script = Script(daemon, "step")
    daemon.call(daemon.server.session.finish)
    script.run()
    assert script.samples == []
    assert script.link._ended
    assert daemon.trainer_status()["finished"] is False


def test_a_state_of_the_first_moments_is_not_missed(daemon: Daemon) -> None:
    """A script that is killed before its schedulers were kept begins them anew, and catches up."""
    first = Script(daemon, "epoch")
    take_step(first)
    first.link.close(finished=False)  # kept without schedulers
    second = Script(daemon, "epoch")
    second.run()
    assert len(second.samples) == EPOCHS * len(OWN) - BATCH


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (0, {}, "the number of epochs 0 is refused"),
        (1, {"accumulate": 1.5}, "accumulate 1.5 is refused"),
        (1, {"step_scheduler": 3}, "a int cannot be brought to a number of steps"),
    ],
)
def test_what_makes_no_epochs_is_refused(
    daemon: Daemon, count: int, options: dict[str, Any], words: str
) -> None:
    script = Script(daemon, "step")
    with script.link as link:
        with pytest.raises(TrainerError, match=words):
            link.epochs(count, script.loader, **options)
        with pytest.raises(TrainerError, match=r"takes the torch\.utils\.data\.DataLoader .* given a list"):
            link.epochs(1, [1, 2])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(script.optimizer)
        with pytest.raises(TrainerError, match="a ReduceLROnPlateau cannot be brought"):
            link.epochs(1, script.loader, epoch_scheduler=plateau)


def test_buffers_and_second_names_are_kept_by_name(daemon: Daemon) -> None:
    model = make_model()
    model.register_buffer("rounded", torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        model(torch.randn(8, 6))
        model.rounded.fill_(3.0)
        state = link.link._keeping.make_state()
        assert state["alias:last.weight"] == "first.weight"
        assert state["buffer:norm.running_mean"].tolist() == model.norm.running_mean.tolist()
        assert "buffer:rounded" not in state, "numpy has no bfloat16"
        assert "buffer:cache" not in state
    later = make_model()
    later.register_buffer("rounded", torch.ones(2, dtype=torch.bfloat16))
    with p2psgd_torch.attach(later, torch.optim.SGD(later.parameters(), lr=0.1), control=daemon.path):
        assert torch.equal(later.norm.running_mean, model.norm.running_mean)
        assert later.rounded.tolist() == [3.0, 3.0]
        assert torch.equal(flat(later), flat(model))
