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

    def __init__(self, daemon: Daemon, kind: str, accumulate: int = 1, **options: Any) -> None:
        self.samples: list[int] = []
        self.rates: list[float] = []
        self.accumulate, self.kind = accumulate, kind
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.skipped: list[int] = []  # attempts that a GradScaler leaves out
        self.link = p2psgd_torch.attach(
            self.model, self.optimizer, control=daemon.path, run_horizon=False, **options
        )
        data = torch.utils.data.TensorDataset(torch.arange(160))
        self.loader = torch.utils.data.DataLoader(
            data, batch_size=BATCH, sampler=self.link.sampler(data, shuffle=False)
        )
        self.steps = -(-len(self.loader) // accumulate)  # of an epoch
        total = EPOCHS * self.steps
        schedulers = torch.optim.lr_scheduler
        if kind == "step":
            self.scheduler = schedulers.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=total)
        else:
            self.scheduler = schedulers.StepLR(self.optimizer, 1, gamma=0.5)

    def run(self, steps: int | None = None) -> None:
        """Train to the end, or until this life has made `steps` steps and is killed."""
        options = {f"{self.kind}_scheduler": self.scheduler, "accumulate": self.accumulate}
        self.left = steps
        for _ in self.link.epochs(EPOCHS, self.loader, **options):
            waiting = 0
            for (numbers,) in self.loader:
                self.samples += numbers.tolist()
                waiting += 1
                if waiting == self.accumulate:
                    self.step()
                    waiting = 0
            if waiting:
                self.step()
            if self.kind == "epoch":
                self.scheduler.step()

    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.01)
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        if len(self.rates) not in self.skipped:
            self.optimizer.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        if self.kind == "step":
            self.scheduler.step()

    def die(self) -> None:
        """End as by `kill -9`: no state is given."""
        self.link._link._keeping.make_state = None
        self.link._remove_hooks()
        self.link._link._client.close()


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("kind", ["step", "epoch"])
@pytest.mark.parametrize("killed_after", [1, 3, 7, 8])
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
    assert second.link._ended
    assert whole.samples == EPOCHS * OWN
    batches = min(killed_after % first.steps * accumulate, STEPS) + killed_after // first.steps * STEPS
    assert first.samples[: batches * BATCH] + second.samples == whole.samples
    assert first.rates + second.rates == pytest.approx(whole.rates)


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


def test_steps_that_were_lost_with_a_trainer_are_not_made_again_and_no_schedule_is_too_long(
    daemon: Daemon,
) -> None:
    first = Script(daemon, "step", local_steps=8)
    with pytest.raises(Killed):
        first.run(13)
    assert (first.link.steps, first.link.link.steps) == (13, 8)
    daemon.call(daemon.server.session.request_state)
    first.link.link.wait(0.0)  # gives it
    first.die()
    wait_until(lambda: not daemon.trainer_status()["attached"], "the daemon has seen its end")
    second = Script(daemon, "step", local_steps=8)
    assert second.link.steps == 8
    second.run()
    assert first.samples[: 13 * BATCH] + second.samples == EPOCHS * OWN
    assert second.scheduler.last_epoch == EPOCHS * STEPS


def test_steps_that_a_scaler_has_left_out_in_earlier_epochs_change_nothing(daemon: Daemon) -> None:
    first = Script(daemon, "epoch")
    first.skipped = [1, 2, 5]
    with pytest.raises(Killed):
        first.run(STEPS + 4)
    daemon.call(daemon.server.session.request_state)
    first.link.link.receive()
    first.die()
    wait_until(lambda: not daemon.trainer_status()["attached"], "the daemon has seen its end")
    second = Script(daemon, "epoch")
    assert second.link.steps == STEPS + 4 - 3
    second.run()
    assert first.samples[: (STEPS + 4) * BATCH] + second.samples == EPOCHS * OWN
    assert second.scheduler.last_epoch == EPOCHS


@pytest.mark.parametrize("kind", ["step", "epoch"])
def test_a_script_that_is_asked_to_end_in_mid_epoch_ends_after_a_batch_and_goes_on_there(
    daemon: Daemon, kind: str
) -> None:
    first = Script(daemon, kind)

    def stop_at_13(*_: object) -> None:
        if first.link.steps == 13:
            daemon.call(daemon.server.session.finish)

    first.optimizer.register_step_post_hook(stop_at_13)
    first.run()
    assert (first.link.steps, len(first.samples)) == (13, 13 * BATCH)
    assert first.scheduler.last_epoch == (13 if kind == "step" else 1)
    wait_until(lambda: not daemon.trainer_status()["attached"], "the daemon has seen its end")
    daemon.call(lambda: setattr(daemon.server.session, "_stopping", False))  # as when a daemon starts again
    second = Script(daemon, kind)
    second.run()
    assert first.samples + second.samples == EPOCHS * OWN
    assert second.rates[0] == pytest.approx(first.rates[-1] if kind == "epoch" else second.rates[0])
    assert second.scheduler.last_epoch == (EPOCHS * STEPS if kind == "step" else EPOCHS)


def test_what_was_kept_and_is_not_asked_for_is_kept_on(daemon: Daemon) -> None:
    first = Script(daemon, "epoch")
    with pytest.raises(Killed):
        first.run(STEPS + 2)
    first.link.close(finished=False)
    Script(daemon, "epoch").link.close(finished=False)  # before it comes to its epochs
    third = Script(daemon, "epoch")
    third.run()
    assert third.rates[0] == pytest.approx(0.05)
    assert third.scheduler.last_epoch == EPOCHS


def test_a_batch_may_be_taken_before_the_loop(daemon: Daemon) -> None:
    first = Script(daemon, "step")
    with pytest.raises(Killed):
        first.run(3)
    first.link.close(finished=False)
    second = Script(daemon, "step")
    for epoch in second.link.epochs(1, second.loader):
        assert next(iter(second.loader))[0].tolist() == OWN[3 * BATCH : 4 * BATCH]
        assert [row for (rows,) in second.loader for row in rows.tolist()] == OWN[3 * BATCH :]
        assert epoch == 0
        break
    second.link.close()


def test_a_place_that_is_none_is_refused(daemon: Daemon) -> None:
    place = p2psgd_torch.epochs.Place
    for text in ("[]", "{}", '{"steps": -1}', '{"steps": 1.5}', '{"step": 1}', "3"):
        with pytest.raises(ValueError, match="its place in the data"):
            place.restored(text, 3)
    assert place.restored(place(lost=2, epoch=1, begun=9).packed(12), 10) == place(14, 4, 1, 9)


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


@pytest.mark.parametrize(("kind", "said"), [("step", True), ("epoch", False)])
def test_a_scheduler_for_other_steps_than_the_node_makes_is_said(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], kind: str, said: bool
) -> None:
    script = Script(daemon, kind)
    with script.link as link:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(script.optimizer, max_lr=0.1, total_steps=3 * 400)
        link.epochs(EPOCHS, script.loader, **{f"{kind}_scheduler": scheduler})
        right = torch.optim.lr_scheduler.OneCycleLR(
            script.optimizer, max_lr=0.1, total_steps=EPOCHS * script.steps
        )
        link.epochs(EPOCHS, script.loader, step_scheduler=right)
    words = f"the OneCycleLR is made for 1,200 steps, and this node makes {EPOCHS * script.steps}"
    error = capsys.readouterr().err
    assert error.count("is made for") == error.count(words) == said
