"""Link a training script to its node's daemon: send and receive, the calls of a ring, and shard counts.

More than 700 lines, since `Link` is the whole interface of a script, and a third of it is the reference that
its users read: what each call takes, returns, raises and waits for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from p2psgd.base.errors import P2psgdError, TrainerError, UsageError
from p2psgd.client.alone import OwnDaemon
from p2psgd.client.buckets import Given
from p2psgd.client.checkpoint import Keeping, MakeState
from p2psgd.client.compute import Group, HostCompute, MakeCompute, ResidualPass
from p2psgd.client.dense import DenseRounds
from p2psgd.client.evaluate import Evaluations, LossAndGradient
from p2psgd.client.point import Point
from p2psgd.client.shard_counts import ShardCounts, pack_unsigned
from p2psgd.client.ternary import TernaryPass
from p2psgd.client.verify import ask_digest, check_copy, is_right
from p2psgd.client.wait import GRACE_S, Waiting
from p2psgd.ipc import layout
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import (
    AttachAnswer,
    DetachRequest,
    ReloadAnswer,
    ReloadRequest,
    ReportRequest,
    ViewRankAnswer,
    ViewRankRequest,
    check_answer,
    close_descriptors,
    describe_fault,
)
from p2psgd.ipc.reported import FIGURES
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX, Wakeup
from p2psgd.ipc.script_state import ScriptState, of_script, read_state
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.wire import codec
from p2psgd.wire.messages import Fields
from p2psgd.wire.mode import Mode, parse_mode
from p2psgd.wire.ring_messages import PARTS_MAX
from p2psgd.wire.rule import RATE_MAX

# ----------------------------------------------------------------------------
# A training script's link to its node's daemon: `receive` before a mini-batch, `send` after it.
#
# The working copy of the weights is private to this process, float32 and always quantum * coordinate
# exactly, so the order in which own and peers' updates come does not matter: at the same frontier it equals
# the daemon's replica bit for bit. In a dense ring the weights are any float32 numbers, and the same holds
# after each round. Where it lies, and the residual with it, is compute.py's. Not safe for several
# threads.


DETACH_TIMEOUT_S = 10.0
SENDS_AHEAD = 2  # of the daemon, in mode `owners`: others see what is contributed later than elsewhere
_NO_RATE = "in this run delta is a change, learning rate included; only a rule of owners but 'sum' takes one"
_EVALUATES = "there is nothing to send or receive in mode 'closure': call evaluate"
FIRST_STATE_STEPS = 10  # then the script's state is given unasked for the first time


class Link:
    """The link of an attached trainer; made by `attach`, closed by `close` or its with block.

    Call `receive` before each mini-batch and `send` after it. Not safe for several threads.

    Attributes:
        weights: The working copy of the weights, float32 (P,), read-only.
        tensors: Views of `weights` by name, in their shapes.
        sent: The number of indices that the last `send` of this trainer sent, by tensor.
        restored: The dict that a trainer of this node gave last by `keep`; None if there is none.
        peer_steps: The number of mini-batches of each peer, by node id, as far as its updates showed; in
            rounds of owners, the rounds.
        quantum: The unit of all weights.
        mode: The mode of the run.
        node: The name of this node.
        node_id: The id of this node.
        residual_age: How many mini-batches old the residual was at the start of this trainer. It is above 0
            after a crash of a trainer on a GPU, whose residual is a copy.
    """

    def __init__(
        self,
        client: ControlClient,
        fields: Fields,
        descriptors: list[int],
        make_compute: MakeCompute = HostCompute,
        full_precision: Collection[str] | None = None,
    ) -> None:
        try:
            answer = check_answer(AttachAnswer, fields)
            self.mode = parse_mode(answer.mode)
            own = 9 if self.mode.dense or self.mode.closure else 7
            if not own <= len(descriptors) <= own + 1:
                raise TrainerError(
                    f"the daemon handed over {len(descriptors)} descriptors instead of {own} or {own + 1}"
                )
            replica, *memories, wake_trainer, wake_daemon = descriptors[:7]
            memories += descriptors[7:own] if self.mode.dense else []
            script = descriptors[own:]
            self.restored = _restored(script, self.mode)
            self._memory = TrainerMemory(answer, memories, Wakeup(wake_trainer), Wakeup(wake_daemon), Given())
            self._compute = make_compute(answer, self._memory)
            self._compute.copy_from(replica)
        except BaseException:
            close_descriptors(descriptors)
            raise
        close_descriptors([replica, *memories, *script])
        client.timeout_s = None  # a stopped daemon that goes on later is no reason to end
        self._client = client
        self._keeping = Keeping(client, self._memory, self._compute, restored=self.restored is not None)
        self._closed = False
        self.own_daemon: OwnDaemon | None = None  # of a script that trains alone; ends with this link
        self._early = 0  # updates of peers that a send has applied already
        self._exact = True  # not while weights are being changed or published, nor after an interruption then
        self._evaluations = (
            Evaluations(client, answer.tensors, descriptors[7:own], self._keeping)
            if self.mode.closure
            else None
        )
        self._waiting = Waiting(client, self._memory, self._keeping)
        self._dense: DenseRounds | None = None
        if self.mode.dense:
            self._dense = DenseRounds(
                self._memory, self._waiting, self._compute, answer.tensors, half=self.mode.half
            )
        self.quantum = 2.0**answer.quantum_log2
        self.weights: NDArray[np.float32] = self._compute.weights
        self.tensors: Mapping[str, NDArray[np.float32]] = self._compute.tensors
        self._counts = ShardCounts(answer) if answer.shards else None
        self._begun = answer.steps
        self._takes_rate = self.mode.rule.gradients
        self._rate = 0.0  # of the last gradient
        self._announced = 0  # steps that peers hear of by an update of this trainer
        self._residual_pass = ResidualPass(
            answer.tensors,
            indices_max=layout.send_indices_max(answer.coordinates),
            quantum=self.quantum,
        )
        self._ternary = _make_ternary_pass(self.mode, answer, full_precision)
        # The weights here move with what is sent, before others have it. Not where owners make the changes,
        # nor in their rounds, which end when the owners' sums are here.
        self._sees_own = not (self.mode.owners and (self.mode.rounds or self._takes_rate))
        self._update_indices_max = codec.indices_max(answer.coordinates)
        self.sent: Mapping[str, int] = dict.fromkeys((name for name, _ in answer.tensors), 0)
        self.node, self.node_id = answer.node, answer.node_id
        self._coordinates = answer.coordinates
        self.residual_age = answer.residual_age
        self._rank = answer.rank
        self.peer_steps = dict(answer.peer_steps)
        self._runs_ahead = self.mode.owners and not self.mode.rounds  # of what updates of owners cover
        self._ahead: deque[int] = deque([0], maxlen=SENDS_AHEAD)  # where the last sends end then
        self._peer_gaps: dict[int, tuple[float, float]] = {}  # when a peer sent last, and its longest gap

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._keeping.break_off()
        self.close(finished=kind is None)

    @property
    def rank(self) -> int:
        """The part of the training data that this node takes, counted from 0.

        Raises:
            TrainerError: the node does not know its rank.
        """
        return self._known_rank()[0]

    @property
    def world_size(self) -> int:
        """The number of parts of the training data, one for each node.

        Raises:
            TrainerError: the node does not know its rank.
        """
        return self._known_rank()[1]

    def _known_rank(self) -> tuple[int, int]:
        if self._rank is None:
            raise TrainerError(
                "this node does not know its rank: start it with p2psgd node --rank i/n, such as 0/3 on the"
                " first of three, or name all nodes, itself too, in its --peers; where nodes come and go, use"
                " data in shards, or view_rank() for every epoch"
            )
        return self._rank

    def view_rank(self) -> tuple[int, int]:
        """Return this node's place among the members of the run at this moment, and their number.

        For runs whose nodes come and go: the members are those of the agreed view, so that all nodes that
        know it have other places of the same number. Call it at the beginning of every epoch. A node that
        trains alone before the run has begun is 0 of 1. Nodes that call it before and after a view changes
        may use some samples twice or not at all in that epoch; data in shards have no such gaps.

        Returns:
            The rank, counted from 0 in the order of the nodes' ids, and the world size.

        Raises:
            TrainerError: the link is closed.
            DaemonLost: the daemon is gone.
        """
        self._check_open()
        fields, descriptors = self._client.exchange(ViewRankRequest())
        close_descriptors(descriptors)
        answer = check_answer(ViewRankAnswer, fields)
        return answer.rank, answer.world_size

    @property
    def steps(self) -> int:
        """The number of mini-batches that all trainers of this daemon have sent, mostly one with a `send`."""
        return self._memory.steps

    @property
    def residual(self) -> NDArray[np.float32]:
        """The changes that were proposed and not yet sent, float32 (P,), read-only; `send` replaces it."""
        residual: NDArray[np.float32] = self._compute.residual
        return residual

    @property
    def stopping(self) -> bool:
        """True if the daemon asks this trainer to end after its current mini-batch."""
        return self._memory.stopping

    def keep(self, make_state: MakeState) -> None:
        """Keep a state of the script with the node's checkpoints, for `restored` after a restart.

        Args:
            make_state: A function without arguments that returns a dict of names and values: numpy arrays of
                plain numbers, ints, floats, strings and bytes, at most 4,096 of them and 1 GiB together. It
                is called now, to check the dict, then about once a second inside `receive` or `evaluate`, or
                less often if it would take more than 1 % of the time, and at `close`. For a script that does
                not call these, or that waits for room, it is called inside `send`, before that counts.

        Raises:
            TrainerError: the dict cannot be kept.

        Example:
            ```python
            link.keep(lambda: {"velocity": velocity})
            velocity = link.restored["velocity"] if link.restored else np.zeros(100, np.float32)
            ```
        """
        self._check_open()
        self._keeping.begin(make_state)

    def evaluate(
        self, function: LossAndGradient, point: ArrayLike, data: Any, *, portions: int | None = None
    ) -> tuple[float, NDArray[np.float64]]:
        """Evaluate loss and gradient over all data of a run in mode "closure", with all other members.

        The data is cut into portions, which members share out as fast as each is; all of them get the same
        sums, to the bit, even if some are slow or die. All members must call this with the same point and
        the same data, as scripts do that run the same optimizer from the same start. One that joins late, or
        is started again, gets the evaluations that it has missed at once, from the first on.

        Args:
            function: Called with the point, flat and read-only, and the data of one portion. Returns the sum
                of the loss over these samples, a number, and its gradient, floats (P,). It must give the
                same numbers for the same samples.
            point: The weights at which to evaluate, float32 or float64, P numbers in any shape.
            data: An array or another sequence that slices, whose first axis is that of the samples; a tuple
                of these; or the number of samples: then the function gets a `range` of them. A sequence that
                is not an array is sliced by another thread while the function runs, by one at a time.
            portions: The number of portions, 1 to 4,096, the same on all members: several for each member,
                each a second of work or so. Default: 64, or one for each sample if there are fewer.

        Returns:
            The loss and the gradient, float64 (P,): the sums over all samples. A portion's numbers
            are rounded to 36 bits or more below the largest of their scale, which is that of a tensor, over
            all portions; beyond 64 portions to one less for each doubling: to 30 with 4,096.

        Raises:
            TrainerError: the run is in another mode; another point or other data than the other members', by
                64 rows of each array; a portion that no member can compute, such as one whose data cannot be
                read, or whose gradient is not finite or has another shape; a function that is not
                deterministic; the daemon is gone.
            SystemExit: the daemon asks this trainer to end; it ends the script, with exit code 0.

        Example:
            ```python
            def loss_and_gradient(x, rows):
                residual = rows[:, :-1] @ x - rows[:, -1]
                return 0.5 * residual @ residual, rows[:, :-1].T @ residual

            with p2psgd.attach(np.zeros(10, np.float32), mode="closure") as link:
                value, gradient = link.evaluate(loss_and_gradient, np.zeros(10), rows)
            ```
        """
        result = self._evaluate(function, point, data, portions=portions)
        self._keeping.note_point(point)
        if math.isfinite(result[0]):
            self._client.tell(ReportRequest(loss=result[0]))
        return result

    def _evaluate(
        self, function: LossAndGradient, point: Any, data: Any, *, portions: int | None = None
    ) -> tuple[float, NDArray[np.float64]]:
        """Evaluate what need not be a loss, and so is not reported as one."""
        self._check_open()
        self._client.check_daemon()
        if self._evaluations is None:
            raise TrainerError("evaluate is for a run in mode 'closure': attach(..., mode='closure')")
        if self._keeping.evaluations:
            self._keeping.give_now_and_then()
        result = self._evaluations.run(function, point, data, portions, stopping=lambda: self.stopping)
        self._memory.publish([], None, steps=1)
        self._keeping.evaluations = self._evaluations.number
        return result

    def receive(self) -> int:
        """Apply the peers' updates that have arrived since the last call.

        If there were too many to keep, all weights are fetched from the replica instead. In rounds, of a
        ring or of owners, it waits until the next one is open; all trainers then have the same weights.

        Returns:
            The number of updates; in a dense ring the number of nodes that contributed to the round. 0 at
            once if `stopping` is set first.

        Raises:
            TrainerError: the link is closed, or the daemon is gone.
        """
        self._check_open()
        self._client.check_daemon()
        if self._evaluations is not None:
            raise TrainerError(_EVALUATES)
        if self._memory.state_wanted:
            self._keeping.give_if_asked()
        elif self._memory.steps - self._begun >= FIRST_STATE_STEPS:
            self._keeping.give_now_and_then()
        self._compute.rest()
        if self.mode.rounds and not self._waiting.until_open():
            return 0
        early, self._early = self._early, 0
        applied = early + self._follow()
        if self._keeping.given:
            self._keeping.given = False
            applied += self._compare()
        return applied

    def send(
        self,
        delta: NDArray[Any],
        threshold: int | Mapping[str, int] | None = None,
        *,
        steps: int = 1,
        rate: float | None = None,
    ) -> int:
        """Propose a change of all weights, and send its large entries.

        The change is added to the residual. Each weight whose residual exceeds the threshold in magnitude is
        sent and moves by exactly the threshold, here and on all other nodes; its residual is reduced by it
        ([Strom 2015], steps 4 to 9). The rest stays in the residual. One call sends at most a sixteenth of
        the weights, or `2**18` of them where that is more; what exceeds that has its turn in the next calls.
        Waits while the daemon's outbox is full.
        In rounds this is the node's contribution to the round; it waits until that is open. In a dense
        ring the change is contributed as it is, and the next `receive` applies the mean. With payload
        "ternary" it has three values in each tensor, all weights are contributed, and there is no residual.

        Args:
            delta: The change, learning rate included: (P,), float32, float16 or bfloat16, the tensors one
                after the other.
            threshold: In quanta, 1 to `2**20`, or a mapping with one for each tensor, by name. Each
                distinct threshold costs 69 bytes. Omit it in a dense ring, and with payload "ternary".
            steps: The number of mini-batches that made the change, 1 to 1,000; the property `steps` rises
                by it. Default: 1.
            rate: The learning rate, above 0 and at most 100, in a run whose owners follow another rule than
                "sum". There `delta` is the gradient itself, and changes the weights here when they come from
                the owners. Default: none.

        Returns:
            The number of indices sent; P in a dense ring.

        Raises:
            TrainerError: another dtype or shape, a NaN or infinite value, a threshold or `steps` out of range
                or missing, or more distinct thresholds than the outbox has room for. Nothing was sent or
                changed.

        Example:
            ```python
            link.send(-0.003 * gradient, threshold=4000)
            ```
        """
        self._check_open()
        self._client.check_daemon()
        if self._evaluations is not None:
            raise TrainerError(_EVALUATES)
        check_steps("steps", steps)
        if self._takes_rate or rate is not None:
            self._check_rate(rate)
        return self._send(delta, threshold, steps, rate or 0.0)

    def _check_rate(self, rate: float | None) -> None:
        if not self._takes_rate:
            raise TrainerError(f"rate {rate!r:.100} is refused: {_NO_RATE}")
        if not isinstance(rate, float | int | np.floating | np.integer) or not 0 < rate <= RATE_MAX:
            raise TrainerError(
                f"rate {rate!r:.100} is refused: the owners' rule is {self.mode.rule.name}, so give the"
                f" gradient, and the learning rate as a number above 0 and at most {RATE_MAX:g}"
            )

    @property
    def _takes_point(self) -> bool:
        """Return whether a point can follow the weights: not on a device."""
        return isinstance(self._compute, HostCompute)

    def _train_at(self, point: Point) -> None:
        """Let a point follow the weights, for `_send_point`."""
        assert isinstance(self._compute, HostCompute)
        self._compute.point = point

    @property
    def _point(self) -> Point | None:
        return self._compute.point if isinstance(self._compute, HostCompute) else None

    def _send_point(self, threshold: int | Mapping[str, int], *, steps: int) -> int:
        """Send as `send` does what the point is away from the weights."""
        self._check_open()
        self._client.check_daemon()
        check_steps("steps", steps)
        return self._send(None, threshold, steps)

    def _announce(self, zeros: NDArray[Any] | None) -> None:
        """Send the largest entry of the residual if the last steps have sent nothing: peers learn of steps by
        updates. Asynchronous mode only; `zeros` is a delta that changes nothing, (P,), or None with a point.
        """
        if self._announced >= self.steps or (self.mode.rule.gradients and not self._rate):
            return
        if self._point is None:
            largest = float(abs(self.residual).max()) / self.quantum
        else:
            largest = self._point.largest(self.weights) / self.quantum
        if largest > 1.0:  # else there is nothing that could be sent
            self._send(zeros, min(math.ceil(largest) - 1, codec.MAGNITUDE_MAX), 0, self._rate)

    def _send(
        self,
        delta: NDArray[Any] | None,
        threshold: int | Mapping[str, int] | None,
        steps: int,
        rate: float = 0.0,
    ) -> int:
        memory, compute = self._memory, self._compute
        if memory.state_wanted:
            self._keeping.give_if_asked_long_ago()
        compute.rest()
        if self.mode.rounds and not self._waiting.until_open():
            return 0
        if self._dense is not None:
            assert delta is not None, "a point is of the asynchronous mode"
            return self._send_dense(self._dense, delta, threshold, steps)
        if (threshold is None) != (self._ternary is not None):
            raise TrainerError(
                "send needs a threshold, in quanta: only a dense ring and payload 'ternary' do without"
                if threshold is None
                else f"threshold {threshold!r:.100} is refused: with payload 'ternary' leave it out"
            )
        if not self._exact:
            self._reload()
        count = memory.steps + steps
        parts = self._pass_over(None if delta is None else compute.check(delta), threshold, count)
        told = count if self.mode.rounds else memory.steps
        entries = [
            entry for group, words in parts for entry in self._code(told, group.magnitude, words, rate)
        ]
        given: Given | None = None
        counted: list[bytes] = []
        if self._counts is not None:
            counted, given = self._count_shards(told, entries)
        elif self.mode.rounds:
            entries.append(layout.OUTBOX_ENTRY.pack(count, 0, 0, 0.0))
            given = memory.mark.contribute(changes=True)
        if entries:  # only the last one tells the step: who has that has all of it
            entries[-1] = layout.OUTBOX_STEPS.pack(count) + entries[-1][layout.OUTBOX_STEPS.size :]
        if self._waiting.says_it_waits or self._runs_ahead or not memory.has_room(entries):
            self._wait_for_room(entries)
        self._exact = False
        memory.publish(entries, given, steps=steps)
        if entries:
            self._announced = count
        self._rate = rate
        if self._sees_own:
            compute.apply_sent(parts)
        if counted:
            self._apply_own(counted)
        self._exact = True
        self.sent = self._residual_pass.count(parts)
        return sum(len(words) for _, words in parts)

    def _pass_over(
        self, delta: Any, threshold: int | Mapping[str, int] | None, count: int
    ) -> list[tuple[Group, NDArray[np.uint32]]]:
        """Return what to send of this delta, as of step `count`."""
        if threshold is not None:
            groups = self._residual_pass.groups(threshold)
            try:
                pass_over = partial(self._compute.pass_over, delta, meanwhile=self._receive_early)
                return self._residual_pass.run(pass_over, groups)
            except ValueError as error:
                raise self._refusal(error) from None
        assert self._ternary is not None
        try:
            updates = self._ternary.run(self._compute.fetch_delta(delta), count)
        except ValueError as error:
            raise TrainerError(f"delta is refused: {error}") from None
        frames = sum(-(-len(words) // self._update_indices_max) for _, words in updates)
        if frames > PARTS_MAX:
            raise TrainerError(
                f"this contribution takes {frames} updates, and one has at most {PARTS_MAX}: with payload"
                " 'ternary' a model may have about as many tensors"
            )
        return [(Group(magnitude, (), 0), words) for magnitude, words in updates]

    def _wait_for_room(self, entries: list[bytes]) -> None:
        if self._runs_ahead:
            self._ahead.append(self._memory.published_bytes)
            self._waiting.until_taken(self._ahead[0])
        self._waiting.until_room(entries)

    def _code(self, steps: int, magnitude: int, words: NDArray[np.uint32], rate: float = 0.0) -> list[bytes]:
        """Return the outbox entries of changes or of a gradient, where the trainer has made `steps` steps."""
        most, entries = self._update_indices_max, []
        for begin in range(0, len(words), most):
            part = words[begin : begin + most]
            head = layout.OUTBOX_ENTRY.pack(steps, magnitude, len(part), rate)
            entries.append(head + codec.encode(part, self._coordinates))
        return entries

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to `receive` or `stopping` is set; in rounds, until the next one is
        open.

        A script that must look at something else now and then calls this before `receive`, which then returns
        at once.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            False if nothing came in time.
        """
        self._check_open()
        self._keeping.give_if_asked()
        if self.mode.rounds:
            return self._waiting.until_open(timeout_s=timeout_s) or self._memory.stopping
        deadline = time.monotonic() + timeout_s
        while not self._has_news():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._client.check_daemon()
                return False
            self._waiting.sleep(left_s)
            self._keeping.give_if_asked()
        return True

    @property
    def busy(self) -> bool:
        """True while the connections to peers are busy with what was given to `send` before.

        What is sent meanwhile is late. A trainer may go on and send the sum of several mini-batches later.
        False in rounds, and while there is no peer.
        """
        return self._memory.links_busy

    def longest_gap_s(self, node: int) -> float:
        """Return the longest time in seconds from one send of a peer to its next, as this trainer saw it.

        Args:
            node: The id of the peer.
        """
        return self._peer_gaps.get(node, (0.0, 0.0))[1]

    def linked_peers(self) -> set[int]:
        """Return the ids of the peers whose updates this node gets now, over a link or through others."""
        peers = self._status().get("peers", [])
        linked = [each for each in peers if each["state"] in ("connected", "suspect") or each["through"]]
        return {int(each["id"], 16) for each in linked if each["id"]}

    def _status(self) -> Fields:
        status: Fields = self._client.request("status")["status"]
        return status

    # -- first weights (client/first_weights.py), before the first mini-batch

    def _begin_at(self, updates: Sequence[tuple[int, NDArray[np.uint32]]]) -> None:
        """Send and apply updates, magnitude and words, all at once; in a sparse ring they are this node's
        contribution to the round.
        """
        if self.mode.rounds and not self._waiting.until_open():
            return
        memory, given = self._memory, None
        memory.settle()
        entries = [entry for magnitude, words in updates for entry in self._code(0, magnitude, words)]
        most = self._update_indices_max
        bodies = [
            pack_unsigned(magnitude, words[begin : begin + most], self._coordinates)
            for magnitude, words in updates
            for begin in range(0, len(words), most)
        ]
        if self.mode.rounds:
            entries.append(layout.OUTBOX_ENTRY.pack(0, 0, 0, 0.0))
            given = memory.mark.contribute(changes=True)
        self._waiting.until_room(entries)
        self._exact = False
        memory.publish(entries, given, steps=0)
        self._apply_own(bodies)
        self._exact = True

    def _begin_dense(self, change: NDArray[np.float32] | None) -> None:
        """Contribute this change, in the host's memory, to the round of a dense ring, or zeros."""
        if self._waiting.until_open():
            self._follow()
            self._dense_rounds("first weights").begin_at(change)

    # -- rounds
    #
    # What a link offers in ring mode beside `receive` and `send`: empty contributions, and the parts
    # of a dense one.
    # All of them are calls between two rounds, or inside one that was opened for this trainer.

    @property
    def round(self) -> int:
        """The number of the round that was opened last, the same on all nodes; 0 before the first.

        This node contributes to it next. It also counts the rounds in which this node had no part (RINGS.md,
        section 25).
        """
        return self._memory.round

    def skip(self) -> int:
        """Contribute nothing to the round of a sparse ring, or of owners; waits until the round is open.

        It does not count as a mini-batch (RINGS.md, section 27).

        Returns:
            0

        Raises:
            TrainerError: the run is not a sparse ring, and not one of owners with rounds.
        """
        self._check_open()
        self._client.check_daemon()
        if not self.mode.rounds or self.mode.dense:
            raise TrainerError(
                'skip is for a run in ring mode with payload = "sparse", or in mode owners with rounds'
            )
        if self._waiting.until_open():
            self._memory.settle()
            memory = self._memory
            entries = [layout.OUTBOX_ENTRY.pack(memory.steps, 0, 0, 0.0)]
            self._waiting.until_room(entries)
            memory.publish(entries, memory.mark.contribute(changes=True), steps=0)
        return 0

    @property
    def proposed(self) -> Mapping[str, NDArray[np.float32]]:
        """The contribution of this node to a round of a dense ring, by tensor, float32 in their shapes.

        Write it between `receive` (or `allreduce_wait`) and `allreduce_begin`.

        Raises:
            TrainerError: the run is not a dense ring.
        """
        return self._dense_rounds("proposed").proposed

    def allreduce_begin(self, name: str) -> None:
        """Start to send `proposed[name]`, which is complete now; for a dense ring.

        Begin each tensor as soon as it is complete, in the same order on all nodes, such as that of
        back-propagation.

        Args:
            name: The name of the tensor.

        Raises:
            TrainerError: the run is not a dense ring, or the tensor contains NaN or infinity.
        """
        dense = self._dense_rounds("allreduce_begin")
        if self._waiting.until_open():
            self._follow()
            dense.begin(name)

    def allreduce_wait(self) -> int:
        """Wait for the round in which all tensors are begun, and apply the mean of all contributions; for a
        dense ring.

        Returns:
            The number of nodes that contributed. 0 if `stopping` was set first: the weights are unchanged.

        Raises:
            TrainerError: a tensor is not begun; begin it and call this again. Nothing was sent.
        """
        dense = self._dense_rounds("allreduce_wait")
        if not dense.pending:
            if self._memory.stopping:  # what could not be begun any more is not missing
                return 0
            dense.refuse_to_wait()
        return self._follow() if self._waiting.until_open() else 0

    @property
    def contributors(self) -> int:
        """The number of nodes that contributed to the last complete round, such as the last `allreduce`.

        It is below the number of nodes while some have no trainer.
        """
        return self._memory.contributors

    def array(self, *shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """Return memory of this shape for `allreduce`, which then does not copy it; for a dense ring.

        It is always the same memory, for as long as the link is open.

        Args:
            *shape: `array(4, 3)` or `array((4, 3))`.
        """
        sizes = (each if isinstance(each, tuple) else (each,) for each in shape)
        return self._dense_rounds("array").array(tuple(itertools.chain.from_iterable(sizes)))

    def allreduce(
        self,
        array: NDArray[np.float32] | np.float32,
        op: str = "mean",
        *,
        name: str = "array",
        out: NDArray[np.float32] | None = None,
        copy: bool = True,
    ) -> NDArray[np.float32]:
        """Sum or average an array over all nodes that contribute one, in a dense ring.

        Each node calls this with an array of the same shape, and all get the same result. It uses a round of
        its own (RINGS.md, section 28).

        Args:
            array: Any float32 array.
            op: "sum" or "mean". Default: "mean".
            name: The name of the array in error messages. Default: "array".
            out: A contiguous array of the same shape for the result, perhaps `array` itself. Default: a new
                array.
            copy: False returns the result as it lies in the daemon's memory, read-only, for "sum" and arrays
                that `array()` has room for. It is valid until this link contributes again or for one failure
                timeout, whichever ends
                first: the node may then be out of the ring, and later rounds are written there. Default:
                    True.

        Returns:
            The sum or mean over `contributors` nodes.

        Raises:
            TrainerError: the run is not a dense ring, the shapes differ between nodes, the array contains NaN
                or infinity, or the daemon asks this trainer to end.

        Example:
            ```python
            mean_loss = link.allreduce(np.array([loss], np.float32))
            ```
        """
        dense = self._dense_rounds("allreduce")
        whole = dense.check_array(array, op)
        result = None
        if not copy:
            dense.check_uncopied(whole, op, out)
        elif out is None:
            result = np.empty(whole.shape, np.float32)
        else:
            result = dense.check_out(out, whole.shape)
        if not self._waiting.until_open(grace_s=GRACE_S):
            raise TrainerError("allreduce is not done: the daemon asks this trainer to end")
        self._follow()
        return dense.allreduce(whole, op, str(name), result)

    @property
    def waited_s(self) -> float:
        """Seconds that this link has waited for room in the outbox and, in ring mode, for rounds to open."""
        return self._waiting.room_s + self._waiting.rounds_s

    @property
    def adding_s(self) -> float:
        """Seconds for which the daemon has added contributions since this trainer attached, in ring mode."""
        return self._memory.adding_us / 1e6

    @property
    def sending_s(self) -> float:
        """Seconds for which the daemon has handed contributions to the network, in ring mode."""
        return self._memory.sending_us / 1e6

    def _dense_rounds(self, call: str) -> DenseRounds:
        self._check_open()
        if self._dense is None:
            payload = (
                f'in ring mode with payload = "{self.mode.payload}"' if self.mode.ring else self.mode.word
            )
            raise TrainerError(
                f'{call} needs a run in ring mode with payload = "dense": this one is {payload}'
            )
        self._client.check_daemon()
        return self._dense

    # -- shards
    #
    # What a link offers to the assignment of data shards (data/shards.py): counts that all nodes
    # have in common (shard_counts.py).

    @property
    def shard_counts(self) -> NDArray[np.int64]:
        """The counts of the data's shards, (2, shards): how many nodes hold each shard, and how often it was
        used.

        They are as far as known here, with the changes by `count_shard`.

        Raises:
            TrainerError: the run was attached without `shards`.
        """
        counts = self._shard_counts()
        return counts.counts(self._compute.fetch_shard_counts(), self._memory.mark.changes_counted)

    def count_shard(self, shard: int, *, held: int = 0, used: int = 0) -> None:
        """Add to the counts of a shard with the next `send`.

        Args:
            shard: The place of the shard in the list.
            held: Added to the number of nodes that hold it. Default: 0.
            used: Added to how often it was used. Default: 0.
        """
        self._shard_counts().change(shard, held=held, used=used)

    def flush_shard_counts(self) -> None:
        """Add the changes by `count_shard` now, because no `send` follows.

        A trainer that has not sent anything yet has published nothing.
        """
        self._check_open()
        memory = self._memory
        if not self._exact:
            self._reload()
        entries: list[bytes] = []
        counted, given = self._count_shards(memory.steps, entries)
        if not entries or memory.steps == self._begun:
            return
        self._waiting.until_room(entries)
        self._exact = False
        memory.publish(entries, given, steps=0)
        self._apply_own(counted)
        self._exact = True

    def _shard_counts(self) -> ShardCounts:
        if self._counts is None:
            raise TrainerError(
                "this run counts no shards: give their list to p2psgd.attach(..., shards=data.list)"
            )
        return self._counts

    def _count_shards(self, steps: int, entries: list[bytes]) -> tuple[list[bytes], Given]:
        """Append what `count_shard` noted to the entries of a publication; return the same for the working
        copy, and what to mark the publication with.
        """
        given = self._memory.mark
        if self._counts is None:
            return [], given
        parts = self._counts.parts(given.changes_counted)
        for magnitude, words in parts:
            head = layout.OUTBOX_ENTRY.pack(steps, magnitude, len(words), 0.0)
            entries.append(head + codec.encode(words, self._coordinates))
        bodies = [self._counts.body(part) for part in parts]
        return bodies, dataclasses.replace(given, changes_counted=self._counts.made)

    def _apply_own(self, bodies: list[bytes]) -> None:
        """Apply shard counts or first weights to the working copy, between a publication and the next thing
        that looks at it.
        """
        self._compute.apply_received(bodies, lambda node, steps: None)

    # -- the daemon's status, and the end

    def report(self, **figures: Any) -> None:
        """Report figures of the training to the daemon's status; never waits.

        Args:
            **figures: Omitted figures stay as they were. `loss`, `test_accuracy` (0 to 1), `epoch`, `waits`
                (a sentence; "" when it waits for nothing). `step` and `of`: how far the training is, in its
                own steps; from then on the daemon counts, and shows the time left. `batch`: the samples of a
                step, from which the daemon works out samples per second; or `samples` (int, of this process)
                and `samples_per_s`. Of a full-batch method `iteration`, `gradient_norm` and `step_length`.
                A step split: `timed_steps` of this process and the seconds that they took together,
                `computing_s`, `waiting_s`, `adding_s`, `sending_s`, and what the daemon did in the same time,
                `daemon_adding_s`, `daemon_sending_s`. A loss or accuracy that is not finite is shown as
                unknown.

        Raises:
            TrainerError: any other figure.

        Example:
            ```python
            link.report(step=0, of=4_000, batch=32)  # once
            link.report(loss=0.5)
            ```
        """
        self._check_open()
        if unknown := [name for name in figures if name not in FIGURES]:
            raise TrainerError(f"report: there is no figure {unknown[0]!r:.100}, only {', '.join(FIGURES)}")
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in figures.items()
        }
        for name in ("loss", "test_accuracy"):
            if isinstance(plain.get(name), float) and not math.isfinite(plain[name]):
                plain[name] = None
        try:
            self._client.tell(ReportRequest(**plain))
        except ValidationError as error:
            raise TrainerError(f"report: {describe_fault(error)}") from None

    def close(self, finished: bool = False) -> None:
        """Detach from the daemon. A second call does nothing.

        Args:
            finished: True if the training is complete, so that this trainer is not started again. Default:
                False.
        """
        if self._closed:
            return
        self._closed = True
        self._client.timeout_s = DETACH_TIMEOUT_S
        kept: list[int] = []
        try:
            self._compute.close()
            if self._evaluations is not None:
                self._evaluations.close()
            kept += self._keeping.pack(ends=True)
        finally:
            with contextlib.suppress(P2psgdError):  # a daemon that is gone or refuses needs no farewell
                self._client.exchange(DetachRequest(finished=finished), kept)
            close_descriptors(kept)
            self._client.close()
            self._memory.close()
            if self.own_daemon is not None:
                self.own_daemon.close()

    def _has_news(self) -> bool:
        """Return whether there is news; after an interruption there always is: all weights, whatever the
        inbox looks like by then.
        """
        memory = self._memory
        changed = not self._exact or memory.reload_wanted or self._early > 0
        return changed or memory.stopping or memory.has_updates()

    def _check_open(self) -> None:
        if self._closed:
            raise TrainerError("this link is closed; attach again")

    def _note_peer(self, node: int, steps: int) -> None:
        if node != self.node_id:  # an update of an earlier incarnation of this node is its own
            if steps > self.peer_steps.get(node, 0):
                now = time.monotonic()
                last, longest = self._peer_gaps.get(node, (now, 0.0))
                self._peer_gaps[node] = (now, max(longest, now - last))
            self.peer_steps[node] = max(steps, self.peer_steps.get(node, 0))

    def _reload(self, *, differed_by: int | None = None) -> None:
        """Fetch the weights from the replica, after an inbox overflow or an interrupted send or receive, or
        since their digest under the key `differed_by` was wrong.

        A point goes along. Where the weights were not exact, its distance to them says nothing, and it is set
        anew: what the script has changed since the last send is lost.
        """
        exact, self._exact = self._exact and differed_by is None, False
        self._memory.settle()
        try:
            request = ReloadRequest(differed=differed_by is not None)
            fields, descriptors = self._client.exchange(request)
        except UsageError as error:
            raise TrainerError(str(error)) from None
        try:
            answer = check_answer(ReloadAnswer, fields)
            if len(descriptors) != 1:
                raise TrainerError(f"the daemon handed over {len(descriptors)} descriptors instead of 1")
            fetch = partial(self._compute.copy_from, descriptors[0])
            if self._point is not None and exact:
                self._point.replace(self.weights, fetch)
            else:
                fetch()
            if differed_by is not None:
                check_copy(self._compute, descriptors[0], self._coordinates, differed_by)
        finally:
            close_descriptors(descriptors)
        if self._point is not None and not exact:
            self._point.set_to(self.weights, self.residual)
        self._memory.skip_inbox(answer.inbox)
        for node, steps in answer.peer_steps:
            self._note_peer(node, steps)
        if self._dense is not None:
            self._dense.settle()
        self._exact = True

    def _make_exact(self) -> None:
        """Fetch the weights anew if a send or a receive was interrupted."""
        if not self._exact:
            self._reload()

    def _compare(self) -> int:
        """Bring the weights to where the daemon knows their digest, and reload them if theirs is another;
        return how many updates that took.
        """
        answer = ask_digest(self._client)
        applied = self._take_in(answer.inbox)
        if not is_right(self._compute, answer):
            self._reload(differed_by=answer.key)
        return applied

    def _follow(self) -> int:
        """Bring the weights up to date; return how many updates, or contributions to a dense round, came."""
        if self._memory.reload_wanted or not self._exact:
            self._reload()
        return self._take_in()

    def _take_in(self, end: int | None = None) -> int:
        """Apply what has come, up to position `end` of the inbox."""
        self._exact = False
        if self._dense is not None:
            applied = self._dense.take(self._compute.add)
        else:
            # The inbox gets its room back before updates are applied: should that fail, all comes anew.
            applied = self._compute.apply_received(self._memory.updates(end), self._note_peer)
        self._exact = True
        return applied

    def _receive_early(self) -> None:
        """Order, in a send that waits for a device, what has come from peers on that device, after its own
        work.
        """
        if not self.mode.rounds and not self._memory.reload_wanted:
            self._early += self._follow()

    def _send_dense(self, dense: DenseRounds, delta: NDArray[Any], threshold: object, steps: int) -> int:
        if threshold is not None:
            raise TrainerError(
                f"threshold {threshold!r:.100} is refused: in a dense ring a delta is given as it is, without"
                " one"
            )
        self._follow()
        given = dense.give(self._compute.check(delta), steps)
        self.sent = {name: tensor.size for name, tensor in self.tensors.items()}
        return given

    def _refusal(self, error: ValueError) -> TrainerError:
        """Return the error for a delta, with what to do, which differs if the residual is to blame."""
        if math.isfinite(abs(self._compute.residual).max()):
            return TrainerError(
                f"delta is refused: {error}: lower the learning rate, or look in the script for what makes it"
            )
        return TrainerError(
            f"every delta is refused while the residual itself is NaN or infinite ({error}): end this"
            " trainer, and the daemon gives the next one zero there; look in the script for what writes"
            " outside its arrays"
        )


def _restored(memory: list[int], mode: Mode) -> ScriptState | None:
    """Return the state in the memfd that the daemon gives, if any, without what evaluations added."""
    state = read_state(memory[0]) if memory else None
    return of_script(state) if state is not None and mode.closure else state


NOT_TERNARY: Final = "full_precision is for payload='ternary': give that as well, or leave it out"


def _make_ternary_pass(
    mode: Mode, answer: AttachAnswer, full_precision: Collection[str] | None
) -> TernaryPass | None:
    if not mode.ternary:
        if full_precision is not None:
            raise TrainerError(NOT_TERNARY)
        return None
    node = answer.node_id if answer.rank is None else answer.rank[0]
    quantum = 2.0**answer.quantum_log2
    return TernaryPass(answer.tensors, quantum=quantum, node=node, full_precision=full_precision)


def check_steps(name: str, steps: object) -> None:
    """Raise TrainerError, with this argument's name, unless one send may hold this number of mini-batches."""
    if type(steps) is not int or not 1 <= steps <= SEND_STEPS_MAX:
        raise TrainerError(
            f"{name} {steps!r:.100} is refused: give a whole number from 1 to {SEND_STEPS_MAX:,}"
        )
