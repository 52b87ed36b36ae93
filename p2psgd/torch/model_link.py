"""Connect a PyTorch model and its optimizers to a node's link, in all modes.

More than 700 lines, since `ModelLink` makes a whole step, from the hook before it to the parameters
after it, and a third of it is the reference that its users read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.base.formatting import say
from p2psgd.client.link import Link
from p2psgd.client.point import Point
from p2psgd.torch.arrays import Arrays, Named
from p2psgd.torch.checkpoint import Kept
from p2psgd.torch.epochs import Epochs, NodeSampler
from p2psgd.torch.gradient_mean import GradientMean, has_closure, needs_mean_of_gradients
from p2psgd.torch.group import Group
from p2psgd.torch.horizon import Horizon, Pace
from p2psgd.torch.last_steps import WAIT_S, settle, wait_for_last_steps
from p2psgd.torch.masters import Masters
from p2psgd.torch.owners_rule import GradientSum, OwnersRule
from p2psgd.torch.parameters import TrainedParameters
from p2psgd.torch.send_policy import SendPolicy
from p2psgd.torch.step_size import Steps

# ----------------------------------------------------------------------------
# The node's link as a script may use it whose optimiser's steps call `receive` and `send`.


class LinkOfModel:
    """A Link that keeps the model's parameters up to date: `receive` updates them too.

    Calls that would leave the parameters behind, or do the steps' work, are refused.
    """

    def __init__(self, link: Link, receive: Callable[[], int]) -> None:
        self._link = link
        self._receive = receive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def receive(self) -> int:
        """Apply what has arrived, between two steps; return the number of updates."""
        return self._receive()

    def send(self, *arguments: object, **named: object) -> NoReturn:
        """Refuse the call: raises TrainerError."""
        raise TrainerError("each optimizer.step() sends what it has changed: leave send out")

    def skip(self) -> NoReturn:
        """Refuse the call: raises TrainerError."""
        raise TrainerError("call skip() of what p2psgd.torch.attach has returned, not of its link")

    def keep(self, *arguments: object) -> NoReturn:
        """Refuse the call: raises TrainerError."""
        raise TrainerError(
            "what is to be kept beside the model is given to p2psgd.torch.attach(keep=[...]), or to keep() of"
            " what it has returned"
        )


# ----------------------------------------------------------------------------
# A model and its optimiser on a node's link: each `optimizer.step()` is a mini-batch of this node. With
# several optimisers all of them make one step together, which ends when the last of them has.
#
# The optimiser stays the object that it was, for schedulers, scalers and state_dict; hooks are called after
# its steps. What a step has changed in the flat tensor of all parameters is the delta. The link's own
# weights never move but by what was sent and received. After each step the parameters are set to the point
# at which this node trains: these weights, which are the same on all nodes, and in asynchronous mode its own
# residual on top of them, so that what it has not sent yet counts for itself and is not made twice. With its
# own residual, and in the host's memory, they are there already: no delta is formed (client/point.py).
#
# Where owners make the changes, the optimiser finds no gradients and changes nothing: these are added up, and
# sent as they are. The parameters are the replica then, and move by what arrives alone.
#
# With local steps only every H-th step sends, or the first one that finds the links free (send_policy.py);
# until then the steps add up in the parameters alone, and what arrives moves the parameters too. With an
# outer rate their sum goes to the owners as a gradient, with the opposite sign, and they make a step of it.


class ModelLink:
    """The link of a PyTorch model; made by `p2psgd.torch.attach`, ended by `close` or its with block.

    `link` is the node's `Link`, for everything that is not here; its `send`, `skip` and `keep` are refused.
    Not safe for several threads.

    Example:
        ```python
        link = p2psgd.torch.attach(model, optimizer)
        loader = DataLoader(dataset, batch_size=32, sampler=link.sampler(dataset))
        for epoch in link.epochs(20, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss_function(model(x), y).backward()
                optimizer.step()
        ```
    """

    def __init__(
        self,
        link: Link,
        model: Any,
        optimizers: Sequence[Any],
        *,
        parameters: TrainedParameters,
        arrays: Arrays,
        steps: Steps,
        kept: Kept,
        keep: Sequence[Any],
        own_residual: bool,
        run_horizon: bool,
        rule: OwnersRule | None,
        outer_rate: float | None,
        policy: SendPolicy,
        group: Group | None = None,
    ) -> None:
        self._group = group
        self._link, self._policy, self._outer_rate = link, policy, outer_rate
        self._ended = False
        self._waited_at = -1  # own steps
        self._own_residual = own_residual
        self.link = LinkOfModel(link, self._receive_for_script)
        self._optimizers = optimizers
        self._stepped: dict[int, bool] = {}  # optimisers in the present step; whether they changed anything
        self._parameters, self._arrays, self._steps = parameters, arrays, steps
        self._hooks: list[Any] = []
        self._horizons: dict[int, Horizon] = {}
        if run_horizon and not link.mode.rounds:
            self._horizons = {id(each): Horizon(each) for each in optimizers}
            self._hooks += [
                each.register_state_dict_pre_hook(lambda its, *_: self._horizons[id(its)].restore())
                for each in optimizers
            ]
        self._horizon_told = False
        self._pace = Pace(expected_nodes(link))
        self._steps_seen = 0  # since another optimiser has made a step
        self._whole = True  # the parameters are at that point, but for what the script has changed
        # In rounds, whose number is what nodes agree on, a rank may have made fewer steps than its group.
        self._missed = 0 if group is None else max(0, group.steps - link.steps)
        self._kept = kept
        kept.script_steps = lambda: self.steps
        self._restore(kept, keep)
        in_place = own_residual and outer_rate is None and not link.mode.rule.gradients
        in_place = in_place and link._takes_point and parameters.fit_in_place
        flat, change = parameters.lay_out(in_place=in_place)
        self._masters, self._shards = parameters.masters, parameters.shards
        self._flat = arrays.view(flat)
        self._delta = arrays.view(change)
        self._point: Point | None = None
        if in_place:
            self._point = Point(parameters.arrays_in_place(self._flat))
            self._shards_in_place = parameters.shards_in_place()
            link._train_at(self._point)
            self._whole = False
        averages = not policy.adds_up and needs_mean_of_gradients(link, optimizers)
        self._mean = GradientMean(link, parameters) if averages else None
        self._gradients = None if rule is None else GradientSum(rule, parameters, change)
        link.keep(kept.make)  # before a wait in which the daemon may ask for it
        self._follow()
        self._share()
        guard = LoadGuard(self._undo)
        self._trained = {id(parameter) for parameter in parameters.named.values()}
        for optimizer in optimizers:
            self._hooks += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
                optimizer.register_load_state_dict_pre_hook(lambda *_: self._masters.widen()),
                optimizer.register_load_state_dict_post_hook(lambda *_: self._masters.narrow()),
            ]
        self._hooks += [
            *(
                each.register_load_state_dict_post_hook(guard)
                for each in model.modules()
                if self._is_any_trained(each.parameters())
            ),
            register_optimizer_step_post_hook(self._after_any_step),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self._remove_hooks()
        try:
            self._end_at_replica(sends=False)
        except Exception:  # the script's own error is what counts, such as that of a device
            pass
        finally:
            self._link.__exit__(kind, error, trace)
            self._cast_states(self._masters)  # for steps without p2psgd

    @property
    def rank(self) -> int:
        """The part of the training data that this node takes, counted from 0.

        Where FSDP has cut the model over a group of ranks, each of them takes a part of its own. Under tensor
        parallelism and in a pipeline all ranks of a group take the same one: the one that writes a file is
        that with rank 0 here and in `torch.distributed`.

        Raises:
            TrainerError: the node does not know its rank.
        """
        if self._group is None:
            return self._link.rank
        own, ranks = self._group.data
        return self._link.rank * ranks + own

    @property
    def world_size(self) -> int:
        """The number of parts of the training data, one for each node, or with FSDP for each of its ranks.

        Raises:
            TrainerError: the node does not know its rank.
        """
        return self._link.world_size * (1 if self._group is None else self._group.data[1])

    def view_rank(self) -> tuple[int, int]:
        """Return this node's place among the members of the run at this moment, and their number.

        Returns:
            The rank and the world size, for runs whose nodes come and go; see `Link.view_rank`. In a group
            all ranks call it together, and they count as `rank` does.

        Raises:
            TrainerError: the link is closed.
        """
        if self._group is None:
            return self._link.view_rank()
        rank, world_size = self._group.gather(self._link.view_rank())[0]  # each part has a view of its own
        own, ranks = self._group.data
        return rank * ranks + own, world_size * ranks

    @property
    def steps(self) -> int:
        """The number of steps that all trainers of this node have made so far.

        Local steps that a trainer had not sent when it was killed do not count: they are lost.
        """
        return self._link.steps + self._policy.unsent + self._missed

    @property
    def run_steps(self) -> int:
        """The number of steps that all nodes have made so far, as far as this node knows.

        A schedule that counts them needs no change when the number of nodes does: see docs/how-to/torch.md.
        A node that joins late does not know the steps of nodes that were gone by then. In a ring it is the
        number of this node's steps, times the nodes of the round before. In a group of ranks it is the same
        on all of them: what one of them knew at their last step.
        """
        others = count_others(self._link) if self._group is None else self._group.others
        return self.steps * others if self._link.mode.rounds else self.steps + others

    @property
    def stopping(self) -> bool:
        """True if the daemon asks this script to end after its current mini-batch.

        In a group of ranks it is the same on all of them, since their last step.
        """
        return self._link.stopping if self._group is None else self._group.stopping

    def report(self, **figures: Any) -> None:
        """Report figures of the training to the daemon's status; never waits.

        Args:
            **figures: For example `loss` and `test_accuracy`, or `step`, `of` and `batch`, which `epochs`
                reports by itself; see `Link.report`.
        """
        self._link.report(**figures)

    def sampler(self, dataset: Any, **options: Any) -> Any:
        """Return a `torch.utils.data.DistributedSampler` for this node's part of a dataset.

        Args:
            dataset: The dataset, the same on all nodes.
            **options: Options of `DistributedSampler`, such as `shuffle` and `seed`.

        Raises:
            TrainerError: the node does not know its rank.
        """
        return NodeSampler(dataset, num_replicas=self.world_size, rank=self.rank, **options)

    def epochs(
        self,
        count: int,
        loader: Any,
        *,
        step_scheduler: Any = None,
        epoch_scheduler: Any = None,
        accumulate: int = 1,
        wait_s: float = WAIT_S,
    ) -> Iterator[int]:
        """Go through the epochs of a training, and close the link after the last one.

        A script that is started again goes on where its node was: with the same epoch, without the batches
        that were used, and with its schedulers at that step. It takes the place of `range(count)`, and
        `loader` has a sampler of this link's.

        Args:
            count: The number of epochs.
            loader: The `torch.utils.data.DataLoader` that the loop goes through in each.
            step_scheduler: A scheduler, or a list of them, that the script steps after each step of the
                optimizer. It is kept as by `keep`. Default: none.
            epoch_scheduler: The same of those that are stepped after each epoch. Default: none.
            accumulate: The number of batches whose gradients add up before a step. Default: 1.
            wait_s: The seconds to wait for the peers' last steps at the end, as of `close`.

        Returns:
            An iterator over the numbers of the epochs that are left, counted from 0. It ends early once the
            daemon asks this script to end. A loop that is left by `break` must be followed by `close()`.

        Raises:
            TrainerError: an argument is of another kind, or the kept state of a scheduler does not fit it.

        Example:
            ```python
            loader = DataLoader(dataset, batch_size=32, sampler=link.sampler(dataset))
            scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=20 * len(loader))
            for epoch in link.epochs(20, loader, step_scheduler=scheduler):
                ...
            ```
        """
        epochs = Epochs(
            count,
            loader,
            step_scheduler=step_scheduler,
            epoch_scheduler=epoch_scheduler,
            accumulate=accumulate,
        )
        place = self._kept.place
        kept = self._kept.add([*epochs.step_schedulers, *epochs.epoch_schedulers])
        epochs.go_to(place, self.steps + place.lost, kept=kept)
        if words := epochs.mismatch():
            say(words)
        return self._run(epochs, wait_s)

    def _run(self, epochs: Epochs, wait_s: float) -> Iterator[int]:
        place = self._kept.place
        told = 0
        self.report(step=self.steps + place.lost, of=epochs.steps, batch=epochs.samples_per_step)
        for epoch in epochs.run(
            place, lambda: self.steps + place.lost, lambda: not self._ended and self.stopping
        ):
            if epoch > told:
                told = epoch
                # An epoch may have fewer steps than expected: the script may leave out what does not divide.
                of = epochs.count * place.length or epochs.steps
                self.report(epoch=epoch, step=self.steps + place.lost, of=of)
            yield epoch
            if self._ended:  # closed by the script
                return
        finished = not self.stopping
        if finished:
            self.report(epoch=place.epoch)
        self.close(finished, wait_s=wait_s)

    def keep(self, *objects: Any) -> None:
        """Keep further objects with the node's checkpoints, such as a scheduler that needs the loader; in a
        script that was started again they get their state back at once.

        Args:
            *objects: Each has `state_dict()` and `load_state_dict()`. They are given in the same order each
                time.

        Raises:
            TrainerError: an object has no state, or what was kept does not fit it.
        """
        self._kept.add(objects)

    def skip(self) -> None:
        """Take part without a gradient, as after a `GradScaler` has skipped a step.

        In a ring the others wait for this node's contribution. In a sparse ring it is empty; in a dense one
        each optimizer makes a step with zeros for this node's gradient. In asynchronous mode the parameters
        only follow the peers, and no call is needed. With local steps in a ring it counts as one of them.
        All ranks of a group call it together.
        """
        self._parameters.check()
        if any(self._stepped.values()):  # an optimizer has made the step, and a scaler has skipped another
            self._end_step_of_all()
            return
        if self._link.mode.dense and not self._policy.adds_up:
            self._skip_step()  # which ends as a step of the optimizers
        else:
            self._end_in_group(self._skip_step)

    def _skip_step(self) -> None:
        if self._policy.adds_up:
            if self._is_off:
                self._undo()
            if self._link.mode.rounds:
                self._end_step()
            else:
                self._receive()
            return
        if self._link.mode.dense:
            if self._group is not None:  # those that another rank trains keep their gradients
                self._group.complete_gradients()
            for parameter in self._parameters.named.values():
                if parameter.requires_grad:  # else decay and momentum would move what is frozen by now
                    parameter.grad = torch.zeros_like(parameter)
            for optimizer in self._optimizers:
                optimizer.step()
            return
        if self._link.mode.rounds:
            self._link.skip()
        self._stepped = {}
        self._follow()

    def wait_for_peers(
        self, steps: int | None = None, *, silence_s: float | None = None, wait_s: float = WAIT_S
    ) -> bool:
        """Send what is left, and follow the peers until each of them has made as many steps as this node.

        `close` does so at the end of the training. In a ring all nodes have made equally many steps anyway.
        It does not wait for a node that has made no step yet, such as one whose script attaches later: nobody
        knows whether it comes at all. docs/how-to/torch.md shows how to wait for those, with a limit.

        Args:
            steps: The number of steps to wait for. Default: those of this node.
            silence_s: The seconds without an update of those that are behind, after which they are taken to
                have ended, or to have failed. Default: 30, or twice the longest time that one of them has
                taken from one send to the next, if that is longer; 5 if this node is linked to none of them.
            wait_s: The seconds to wait at most. Default: 3,600.

        Returns:
            True if all peers have made the steps; False after silence or `wait_s`, or if the daemon asks this
            script to end. In a group of ranks it is True if it is on all of them.

        Raises:
            TrainerError: a step that was left cannot be sent.
        """
        link = self._link
        if self._is_off:
            self._undo()
        if not link.mode.rounds:
            if self._policy.unsent:
                self._send_changes()
            if self._point is not None:
                link._announce(None)
            else:
                with self._arrays.ordered():
                    self._delta[...] = 0
                    link._announce(self._delta)
        self._follow()
        wanted = self.steps if steps is None else steps
        self._waited_at = self.steps  # once is enough
        if link.mode.rounds:
            return True
        heard = wait_for_last_steps(link, wanted, self._follow, silence_s=silence_s, wait_s=wait_s)
        if link.mode.owners:  # a peer's last step is in updates of several owners: not all may have come
            settle(link, self._follow)
        if self._group is not None:
            heard = self._group.agree_on_waiting(heard, link.stopping, count_others(link))
        self._share()
        return heard

    def close(self, finished: bool = True, *, wait_s: float = WAIT_S) -> None:
        """End the training; the model gets the weights of the replica, which all nodes share, and the
        optimizer is an ordinary one again.

        If the training is complete it waits for the last steps of the peers first, as `wait_for_peers` does.
        Where that was not cut short, all nodes leave with the same weights. Save the model after that, on the
        node with rank 0.

        Args:
            finished: True if the training is complete; False if this script should be started again. Default:
                True. A second call does nothing.
            wait_s: The seconds to wait at most. Default: 3,600.
        """
        try:
            if finished and not self._ended and self._waited_at != self.steps:
                with contextlib.suppress(DaemonLost):
                    self.wait_for_peers(wait_s=wait_s)
        finally:
            self._remove_hooks()
            try:
                self._end_at_replica()
            finally:
                self._link.close(finished)
                self._cast_states(self._masters)  # for steps without p2psgd

    def _restore(self, kept: Kept, keep: Sequence[Any]) -> None:
        """Continue from the state that an earlier start kept, with the optimizer's state in float32."""
        masters = Masters.copied(self._parameters.named.values())  # those of the run need another place
        masters.widen()
        try:
            kept.restore()
            kept.add(keep)
            self._cast_states(masters)
        finally:
            masters.narrow()

    def _cast_states(self, masters: Masters) -> None:
        for optimizer in self._optimizers:
            masters.cast_state(optimizer)

    def _before_step(self, optimizer: Any, arguments: Any, named: Named) -> None:
        if self._is_within_a_step(optimizer):
            return
        if self._is_off:
            self._undo()
        elif id(optimizer) in self._stepped:  # other optimisers have made no step, as a GradScaler decides
            self._end_step_of_all()
        first = not self._stepped
        self._parameters.check()
        if self._group is not None:
            self._group.complete_gradients()
        if self._gradients is not None:
            self._gradients.check_step(optimizer, arguments, named)
            self._refuse_changes()
            self._gradients.take()
            self._whole = False
            self._steps_seen += 1
            return
        if (self._masters or self._mean) and has_closure(optimizer, arguments, named):
            raise TrainerError(
                "parameters of bfloat16 or float16 are float32 while the optimizer steps, and a closure would"
                " compute with those: call step() without one"
                if self._masters
                else "in a dense ring the gradients are averaged before the step, and a closure makes others"
                " in it: call step() without one"
            )
        if self._link.mode.dense and getattr(optimizer, "found_inf", None) is not None:
            raise TrainerError(
                "in a dense ring a GradScaler cannot leave the decision about a step to a fused optimizer:"
                " make it with fused=False, and call skip() after a step that was left out"
            )
        if self._mean is not None and first and not self._mean.due:
            self._follow_round_of_changes()
        self._masters.adopt()
        self._masters.widen()
        if self._mean is not None and first:
            try:
                self._mean.take()
            except BaseException:
                self._masters.narrow()
                raise
        self._whole = False
        self._steps_seen += 1
        if self._horizons:
            if first:
                self._note_pace()
            self._horizons[id(optimizer)].shorten(self._pace.ratio)

    @property
    def _is_off(self) -> bool:
        """Return whether the parameters are not at the point of training, since a step was refused or
        interrupted, or the send of one. What of it is sent is in the link.
        """
        return not (self._whole and self._link._exact)

    def _refuse_changes(self) -> None:
        """Undo and refuse what the script has changed in parameters, where nodes send gradients."""
        self._masters.adopt()
        self._shards.gather()
        with self._arrays.ordered():
            same = bool((self._flat == self._link.weights).all())
        if not same:
            self._undo()
            raise TrainerError(
                "the script has changed parameters in place, and nodes send gradients in this run: the"
                " change is undone; leave it out, or take the rule 'sum'"
            )

    @staticmethod
    def _is_within_a_step(optimizer: Any) -> bool:
        """Return whether the step whose hook asks is called by another step of this optimizer, as where
        step() calls super().step(): PyTorch calls the hooks for both. Nothing is kept for this, since a step
        that raises calls no hook at its end.
        """
        step = sys._getframe(2)
        frame = step.f_back
        while frame is not None:
            if frame.f_code is step.f_code and any(each is optimizer for each in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    def _note_pace(self) -> None:
        """Count the steps of the run, and say what follows for averages once that is known."""
        pace = self._pace
        pace.note(self.steps, self._link.peer_steps)
        if pace.measured and pace.ratio > 1 and not self._horizon_told:
            self._horizon_told = True
            for horizon in self._horizons.values():
                if horizon.applies:
                    say(horizon.describe(pace.ratio))

    def _after_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        if self._is_within_a_step(optimizer):
            return
        self._masters.narrow()
        if self._gradients is not None:
            self._gradients.give_back()
        if self._horizons:
            self._horizons[id(optimizer)].restore()
        infinite = getattr(optimizer, "found_inf", None)  # of a fused optimiser, which asks the scaler itself
        self._stepped[id(optimizer)] = infinite is None or not float(infinite)
        if len(self._stepped) < len(self._optimizers):
            self._masters.round()
            self._whole = True
            return
        self._end_step_of_all()

    def _end_step_of_all(self) -> None:
        """End the step that the optimizers have made together; if a scaler has left it out, only receive."""
        changed, self._stepped = any(self._stepped.values()), {}
        self._end_in_group(self._end_step if changed else self._leave_step_out)

    def _end_in_group(self, work: Callable[[], None]) -> None:
        """Do this rank's work at the end of a step, and agree with the other ranks whether that was the last.

        In rounds a rank may wait long for nodes in its part's ring, and the others wait for it in this
        agreement, which has the time. Else they agree while they work.
        """
        group, link = self._group, self._link
        if group is not None and not link.mode.rounds:
            group.ask_to_end(link.stopping, count_others(link))
        work()
        if group is not None:
            if link.mode.rounds:
                group.ask_to_end(link.stopping, count_others(link))
            group.end_step()

    def _leave_step_out(self) -> None:
        self._whole = self._policy.adds_up
        if not self._link.mode.rounds:  # in a ring the script calls skip() after a step that was left out
            self._receive()

    def _share(self) -> None:
        """Give all ranks of the group what several of them hold whole."""
        if self._group is not None:
            self._group.share()

    def _end_step(self) -> None:
        """Send the changes since the last send, if it is time, and take in what has arrived."""
        if self._policy.waits():
            self._masters.round()
            self._whole = True
            if not self._link.mode.rounds and self._link.wait(0.0):
                self._receive()
            return
        self._send_changes()
        self._follow()

    def _send_changes(self) -> None:
        """Send what the parameters have changed by since they were set to the point of training."""
        self._shards.gather()
        with self._arrays.ordered():
            if self._point is None:
                self._form_delta()
            try:
                self._send()
            except TrainerError as error:
                try:
                    self._blame_parameter(error)
                finally:
                    self._undo()
            finally:
                self._policy.note_send()
                if self._gradients is not None:
                    self._gradients.clear()

    def _form_delta(self) -> None:
        """Set the delta to the last changes of all parameters; the sum of gradients is there already."""
        if self._gradients is None:
            before, after = self._link.weights, self._flat
            if self._outer_rate is not None:  # a gradient points where the loss grows
                before, after = after, before
            self._arrays.xp.subtract(after, before, out=self._delta)
        if self._own_residual:
            self._delta -= self._link.residual

    def _follow_shards(self, point: Point) -> None:
        """Go on where PyTorch has put the shards."""
        if self._shards_in_place.have_moved():
            point.move_to(self._parameters.arrays_in_place(self._flat))

    def _after_any_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        """Refuse a step of another optimizer on the trained parameters, which would train this node alone.

        An optimizer inside the own one's step, or around it, is allowed.
        """
        if any(optimizer is each for each in self._optimizers) or not self._whole:
            return
        if not any(self._is_any_trained(group["params"]) for group in optimizer.param_groups):
            return
        seen, self._steps_seen = self._steps_seen, 0
        if not seen:
            self._undo()
            raise TrainerError(
                f"another optimizer, {type(optimizer).__name__}, has changed the parameters, which would"
                " never be sent: give p2psgd.torch.attach all those whose step() the script calls"
            )

    def _is_any_trained(self, parameters: Iterable[Any]) -> bool:
        return any(id(parameter) in self._trained for parameter in parameters)

    def _send(self) -> None:
        link, steps = self._link, self._steps
        if self._point is not None:
            self._follow_shards(self._point)
            waiting = self._point.waiting(link.weights)
            link._send_point(steps.choose(waiting, self._parameters.rates), steps=self._policy.unsent)
            steps.sent()
            self._whole = True  # what was a change is in the residual now
            return
        if link.mode.dense:
            link.send(self._delta, steps=self._policy.unsent)
            return
        rate, rates = self._outer_rate, self._parameters.rates
        if self._gradients is not None:
            rate, rates = self._gradients.rate, [1.0] * len(self._parameters.ranges)
        elif link.mode.rounds and self._policy.adds_up and rate is None:
            # The sum of what many steps have made would be too far.
            self._delta *= np.float32(1 / (link.contributors or expected_nodes(link)))
        threshold = None if link.mode.ternary else steps.take(self._delta, link.residual, rates)
        link.send(self._delta, threshold, steps=self._policy.unsent, rate=rate)
        if not link.mode.ternary:
            steps.sent()

    def _follow_round_of_changes(self) -> None:
        """Contribute zeros to a round of changes whose gradients this node missed."""
        with self._arrays.ordered():
            self._delta[...] = 0
            self._link.send(self._delta)
        self._follow()

    def _receive_for_script(self) -> int:
        """Receive between two steps, on all ranks of a group."""
        applied = self._receive()
        self._share()
        return applied

    def _receive(self) -> int:
        """Receive between two steps; changes that the script has made to parameters are kept."""
        if self._is_off:
            return self._follow()
        if self._gradients is not None:
            self._refuse_changes()
            with self._arrays.ordered():
                applied = self._link.receive()
            self._set_parameters()
            return applied
        if self._point is not None:
            self._masters.adopt()
            return self._move_on(self._point)
        self._whole = False
        self._masters.adopt()
        self._shards.gather()
        with self._arrays.ordered():
            self._arrays.xp.subtract(self._flat, self._link.weights, out=self._delta)
            applied = self._link.receive()
            self._arrays.xp.add(self._link.weights, self._delta, out=self._flat)
        self._masters.round()
        self._shards.scatter()
        self._whole = True
        return applied

    def _follow(self) -> int:
        """Apply what has arrived from peers and set the parameters to the point at which this node trains."""
        if self._point is not None and not self._is_off:  # they are there, and move with what arrives
            return self._move_on(self._point)
        with self._arrays.ordered():
            applied = self._link.receive()
        self._undo()
        return applied

    def _move_on(self, point: Point) -> int:
        """Apply what has arrived from peers to the replica and to the parameters alike."""
        self._whole = False
        self._follow_shards(point)
        applied = self._link.receive()
        self._masters.round()
        self._whole = True
        return applied

    def _undo(self) -> None:
        """Set the parameters to the point at which this node trains; local steps that were not sent are lost.

        In a ring they count nevertheless, so that all nodes have made equally many.
        """
        self._stepped = {}
        if self._gradients is not None:
            self._gradients.give_back()
        if not self._link.mode.rounds:
            self._policy.unsent = 0
            if self._gradients is not None:
                self._gradients.clear()
        with contextlib.suppress(DaemonLost):  # which the next call raises
            self._link._make_exact()
        self._set_parameters()

    def _set_parameters(self) -> None:
        """Set the parameters to the point at which this node trains."""
        if self._point is not None:
            self._follow_shards(self._point)
            self._point.set_to(self._link.weights, self._link.residual if self._own_residual else None)
            self._masters.narrow()
            self._masters.round()
            self._whole = True
            return
        with self._arrays.ordered():
            if self._own_residual:
                self._arrays.xp.add(self._link.weights, self._link.residual, out=self._flat)
            else:
                self._flat[...] = self._link.weights
        self._masters.narrow()
        self._masters.round()
        self._shards.scatter()
        self._whole = True

    def _blame_parameter(self, error: TrainerError) -> None:
        """Raise TrainerError with the first parameter that a step has spoilt, else `error`."""
        if not bool(self._arrays.xp.isfinite(self._link.residual).all()):
            raise error
        for name, (begin, end) in self._parameters.ranges.items():
            if not self._is_finite(begin, end):
                what = (
                    f"the step has made {name!r}"
                    if self._gradients is None
                    else f"the gradient of {name!r} is"
                )
                raise TrainerError(
                    f"{what} NaN or infinite, and nothing of it was sent: lower the"
                    " learning rate, clip the gradients, or look for the division that made it"
                ) from None
        raise error

    def _is_finite(self, begin: int, end: int) -> bool:
        """Return whether the last change of these weights has no NaN and no infinity."""
        if self._point is not None:
            return self._point.is_finite(begin, end)
        return bool(self._arrays.xp.isfinite(self._delta[begin:end]).all())

    def _end_at_replica(self, *, sends: bool = True) -> None:
        """Set the parameters to the replica's weights, as far as they have come; only the first time. After
        an error of the script it `sends` nothing, and gives no state, which may be of a step that failed.
        """
        if self._ended:
            return
        self._ended = True
        try:
            if sends and not self._link.mode.rounds:
                with contextlib.suppress(DaemonLost):
                    if self._policy.unsent and self._whole:
                        self._send_changes()
                    with self._arrays.ordered():
                        self._link.receive()
        finally:
            self._own_residual = False
            self._undo()
        if sends:
            self._share()

    def _remove_hooks(self) -> None:
        for horizon in self._horizons.values():  # a step may have been interrupted
            horizon.restore()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def knows_rank(link: Link) -> bool:
    """Return whether this node knows its rank, and thus how many nodes there are."""
    try:
        return link.world_size > 0
    except TrainerError:
        return False


def count_others(link: Link) -> int:
    """Return the steps of the other nodes, or in rounds how many nodes there are, as this node knows."""
    if link.mode.rounds:
        return link.contributors or expected_nodes(link)
    return sum(link.peer_steps.values())


def expected_nodes(link: Link) -> int:
    """Return how many nodes probably train, before their steps were counted."""
    return link.world_size if knows_rank(link) else 1


class LoadGuard:
    """A hook that undoes and refuses `load_state_dict` of a model, or of a part of it.

    The loaded weights would look like a change of this node, to be sent bit by bit. In copies of the model,
    and where it was unpickled, the call is allowed.
    """

    def __init__(self, undo: Callable[[], None] | None = None) -> None:
        self._undo = undo

    def __call__(self, module: Any, keys: Any) -> None:
        if self._undo is not None:
            self._undo()
            raise TrainerError(
                "load_state_dict would change the weights on this node alone: load them before"
                " p2psgd.torch.attach, the same on all nodes, or after close()"
            )

    def __reduce__(self) -> tuple[type[LoadGuard], tuple[()]]:
        return LoadGuard, ()
