"""A training script's link to its node's daemon: `receive` before a mini-batch, `send` after it.

The working copy of the weights is private to this process, float32 and always quantum * coordinate exactly,
so the order in which own and peers' updates come does not matter: at the same frontier it equals the daemon's
replica bit for bit. In a dense ring the weights are any float32 numbers, and the same holds after each round.
Where it lies, and the residual with it, is compute.py's. Not safe for several threads.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from p2psgd.errors import P2psgdError, TrainerError, UsageError
from p2psgd.ipc import layout
from p2psgd.ipc.answers import AttachAnswer, ReloadAnswer, check_answer
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.proposal import own_tensors
from p2psgd.ipc.requests import (
    DetachRequest,
    ReloadRequest,
    ReportRequest,
    describe_fault,
)
from p2psgd.ipc.ring import entry_bytes
from p2psgd.ipc.script_state import pack_state
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.ipc.wakeup import Wakeup
from p2psgd.trainer.comparing import ask_digest, check_copy, is_right
from p2psgd.trainer.compute import MakeCompute
from p2psgd.trainer.dense_rounds import DenseRounds
from p2psgd.trainer.given import Given
from p2psgd.trainer.host_compute import HostCompute
from p2psgd.trainer.keeping import Keeping, MakeState, read_kept
from p2psgd.trainer.ring_calls import RingCalls
from p2psgd.trainer.shard_calls import ShardCalls
from p2psgd.trainer.shard_counts import ShardCounts
from p2psgd.trainer.sweep import Sweep
from p2psgd.trainer.waiting import Waiting
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode

DETACH_TIMEOUT_S = 10.0


class Link(RingCalls, ShardCalls):
    """An attached trainer; made by `attach`, closed by `close` or at the end of its with block.

    `weights` is the working copy, float32 (P,), read-only; `tensors` are views of it by name, in their
    shapes. `mini_batches` counts the `send` calls of all this node's trainers so far, `peer_mini_batches` the
    same of each peer as far as its updates told, by node id. `sent` says how many indices the last `send` of
    this trainer sent of each tensor, by name.
    `restored` is the dict that a trainer of this node gave last by `keep`, None if there is none.
    `residual_age` says how many mini-batches behind the residual was at the begin of this life: that of a
    trainer on a GPU which crashed is a copy. `mode` is the run's (wire/mode.py).
    """

    def __init__(
        self,
        client: ControlClient,
        fields: dict[str, Any],
        descriptors: list[int],
        make_compute: MakeCompute = HostCompute,
    ) -> None:
        try:
            answer = check_answer(AttachAnswer, fields)
            self.mode = parse_mode(answer.mode)
            own = 9 if self.mode.dense else 7
            if not own <= len(descriptors) <= own + 1:
                raise TrainerError(
                    f"the daemon handed over {len(descriptors)} descriptors instead of {own} or {own + 1}"
                )
            replica, *memories, wake_trainer, wake_daemon = descriptors[:7]
            memories += descriptors[7:own]
            script = descriptors[own:]
            self.restored = read_kept(script[0]) if script else None
            self._memory = TrainerMemory(answer, memories, Wakeup(wake_trainer), Wakeup(wake_daemon), Given())
            self._compute = make_compute(answer, self._memory)
            self._compute.copy_from(replica)
        except BaseException:
            close_descriptors(descriptors)
            raise
        close_descriptors([replica, *memories, *script])
        client.timeout_s = None  # a stopped daemon that goes on later is no reason to end
        self._client = client
        self._keeping = Keeping(client, self._memory, self._compute)
        self._closed = False
        self._early = 0  # updates of peers that a send has applied already
        self._exact = True  # not while weights are being changed or published, nor after an interruption then
        self._waiting = Waiting(client, self._memory, self._keeping)
        self._dense = None
        if self.mode.dense:
            self._dense = DenseRounds(
                self._memory, self._waiting, self._compute, answer.tensors, half=self.mode.half
            )
        self.quantum = 2.0**answer.quantum_log2
        self.weights: NDArray[np.float32] = self._compute.weights
        self.tensors: Mapping[str, NDArray[np.float32]] = self._compute.tensors
        tensors = own_tensors(answer.tensors)
        self._counts = ShardCounts(answer) if len(tensors) < len(answer.tensors) else None
        self._begun = answer.mini_batches
        self._sweep = Sweep(tensors, indices_max=answer.indices_max, quantum=self.quantum)
        self.sent: Mapping[str, int] = dict.fromkeys((name for name, _ in tensors), 0)
        self.node = answer.node
        self.node_id = answer.node_id
        self._all_weights = answer.weights
        self.residual_age = answer.residual_age
        self._share = answer.share
        self.peer_mini_batches = dict(answer.peer_mini_batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._keeping.make_state = None  # it may be in the middle of anything
        self.close(finished=kind is None)

    @property
    def share(self) -> tuple[int, int]:
        """(i, n): take the i-th of n parts of the data. TrainerError if this node was not told it."""
        if self._share is None:
            raise TrainerError(
                "this node does not know its share of the data: start it with p2psgd node --share i/n, such "
                "as 0/3 on the first of three, or name all nodes, itself too, in its --peers"
            )
        return self._share

    @property
    def mini_batches(self) -> int:
        """How often this node's trainers have sent, over all their lives."""
        return self._memory.mini_batches

    @property
    def residual(self) -> NDArray[np.float32]:
        """What was proposed and not yet sent, float32 (P,), read-only; the next `send` puts another there."""
        residual: NDArray[np.float32] = self._compute.residual
        return residual

    @property
    def stopping(self) -> bool:
        """Whether the daemon asks this trainer to end after its current mini-batch."""
        return self._memory.stopping

    def keep(self, make_state: MakeState) -> None:
        """Have what `make_state()` returns kept with the checkpoints of this node, for `restored`.

        It returns a dict of names and values: numpy arrays of plain numbers, ints, floats, texts and bytes,
        at most 4,096 and 1 GiB together. It is called now, to see that it will do (TrainerError if not), at
        `close`, and about once a minute inside `receive` or `wait`; for a script that does not call them, or
        that waits for room, inside `send`, before that counts.
        """
        self._check_open()
        pack_state(make_state())
        self._keeping.make_state = make_state

    def receive(self) -> int:
        """Apply the peers' updates that have come since the last call; return how many they were.

        When there were too many to keep, the weights are fetched anew from the replica instead, with the own
        updates in them.

        In ring mode: wait until the next round is opened, then do the same; all trainers then have the same
        weights. In a dense ring, apply what `send` gave, and return how many nodes had a share in it. Returns
        0 at once when `stopping` comes first.
        """
        self._check_open()
        self._client.check_daemon()
        self._keeping.give_if_asked()
        self._compute.rest()
        if self.mode.ring and not self._waiting.until_open():
            return 0
        early, self._early = self._early, 0
        applied = early + self._follow()
        if self._keeping.given:
            self._keeping.given = False
            applied += self._compare()
        return applied

    def send(self, delta: NDArray[Any], step: int | Mapping[str, int] | None = None) -> int:
        """Propose a change of all weights, (P,); return how many indices of it were sent.

        `delta` is float32, float16 or bfloat16. residual += delta, in float32; each weight whose residual
        exceeds `step` quanta (1 to 2**20; a mapping gives every tensor its own, by name) in magnitude is sent
        and changed by that much here and everywhere, and its residual reduced by it ([Strom 2015], steps 4 to
        9); the rest waits in the residual. Waits while the daemon's outbox is full. TrainerError, with
        nothing changed, for another dtype or shape, a NaN or infinite value, a step out of range or a tensor
        without one, and for more distinct steps than the outbox has room for.

        In ring mode this is the node's share of the round; waits until that is opened. In a dense ring there
        is no step: `delta` is given as it is, float32, and P returned; the next `receive` applies the mean.
        """
        self._check_open()
        self._client.check_daemon()
        self._keeping.give_if_asked_long_ago()
        self._compute.rest()
        if self.mode.ring and not self._waiting.until_open():
            return 0
        if self._dense is not None:
            return self._send_dense(self._dense, delta, step)
        if step is None:
            raise TrainerError("send needs a step, in quanta: only a dense ring does without")
        if not self._exact:
            self._reload()
        memory, compute = self._memory, self._compute
        mini_batch = memory.mini_batches + 1
        groups = self._sweep.groups(step)
        try:
            pass_over = partial(compute.pass_over, compute.check(delta), meanwhile=self._receive_early)
            parts = self._sweep.run(pass_over, groups)
        except ValueError as error:
            raise self._refusal(error) from None
        entries = [
            layout.OUTBOX_ENTRY.pack(mini_batch, group.step, len(words))
            + codec.encode(words, self._all_weights)
            for group, words in parts
        ]
        counted, given = self._count_shards(mini_batch, entries)
        if self.mode.ring:
            entries.append(layout.OUTBOX_ENTRY.pack(mini_batch, 0, 0))
            given = given.share(changes=True)
        self._wait_for_room(entries)
        self._exact = False
        memory.publish(entries, given)
        compute.apply_sent(parts)
        self._apply_counts(counted)
        self._exact = True
        self.sent = self._sweep.count(parts)
        return sum(len(words) for _, words in parts)

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to `receive` or `stopping` is set; False if neither came in time.

        In ring mode: until the next round is opened. A script that must look at something else now and then
        waits so before it calls `receive`, which then returns at once.
        """
        self._check_open()
        self._keeping.give_if_asked()
        if self.mode.ring:
            return self._waiting.until_open(timeout_s=timeout_s) or self._memory.stopping
        deadline = time.monotonic() + timeout_s
        while not self._has_news():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._waiting.sleep(left_s)
            self._keeping.give_if_asked()
        return True

    def report(self, **figures: Any) -> None:
        """Tell the daemon's status how training goes; figures left out stay as they were. Never waits.

        samples (int, of this process), samples_per_s, loss, test_accuracy (0 to 1), epoch, waits (a plain
        sentence, "" when it waits for nothing); and of so many `steps` of this process the seconds that they
        took together: computing_s, waiting_s, adding_s, sending_s, and beside these what the daemon did in
        the same time, daemon_adding_s, daemon_sending_s. A loss or accuracy that is not finite is shown as
        unknown. TrainerError for any other figure.
        """
        self._check_open()
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
        """Detach; `finished`: all is done, nobody needs to start this trainer again. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._client.timeout_s = DETACH_TIMEOUT_S
        kept: list[int] = []
        try:
            self._compute.close()
            kept += self._keeping.pack()
        finally:
            with contextlib.suppress(P2psgdError):  # a daemon that is gone or refuses needs no farewell
                self._client.exchange(DetachRequest(finished=finished), kept)
            close_descriptors(kept)
            self._client.close()
            self._memory.close()

    def _has_news(self) -> bool:
        """After an interruption there is always: all weights, whatever the inbox looks like by then."""
        memory = self._memory
        changed = not self._exact or memory.reload_wanted or self._early > 0
        return changed or memory.stopping or memory.has_updates()

    def _check_open(self) -> None:
        if self._closed:
            raise TrainerError("this link is closed; attach again")

    def _note_peer(self, node: int, mini_batch: int) -> None:
        self.peer_mini_batches[node] = max(mini_batch, self.peer_mini_batches.get(node, 0))

    def _reload(self, *, differed_by: int | None = None) -> None:
        """Fetch the weights from the replica, after an inbox overflow or an interrupted send or receive, or
        since their digest under the key `differed_by` was wrong.
        """
        self._exact = False
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
            self._compute.copy_from(descriptors[0])
            if differed_by is not None:
                check_copy(self._compute, descriptors[0], differed_by)
        finally:
            close_descriptors(descriptors)
        self._memory.skip_inbox(answer.inbox)
        for node, mini_batch in answer.peer_mini_batches:
            self._note_peer(node, mini_batch)
        if self._dense is not None:
            self._dense.settle()
        self._exact = True

    def _compare(self) -> int:
        """Bring the weights to where the daemon knows their digest, and mend them if theirs is another; how
        many updates that took.
        """
        answer = ask_digest(self._client)
        applied = self._take_in(answer.inbox)
        if not is_right(self._compute, answer):
            self._reload(differed_by=answer.key)
        return applied

    def _follow(self) -> int:
        """Bring the weights up to date with what has come; how many updates, or shares of a dense round."""
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
        """In a send that waits for a device: order there, after what it does, what has come from peers."""
        if not self.mode.ring and not self._memory.reload_wanted:
            self._early += self._follow()

    def _send_dense(self, dense: DenseRounds, delta: NDArray[Any], step: object) -> int:
        if step is not None:
            raise TrainerError(
                f"step {step!r:.100} is refused: in a dense ring a delta is given as it is, without one"
            )
        self._follow()
        given = dense.give(self._compute.check(delta))
        self.sent = {name: tensor.size for name, tensor in self.tensors.items()}
        return given

    def _refusal(self, error: ValueError) -> TrainerError:
        """Of a delta, with what to do about it, which is something else if the residual is to blame."""
        if math.isfinite(abs(self._compute.residual).max()):
            return TrainerError(
                f"delta is refused: {error}: lower the learning rate, or look in the script for what makes it"
            )
        return TrainerError(
            f"every delta is refused while the residual itself is NaN or infinite ({error}): end this"
            " trainer, and the daemon gives the next one zero there; look in the script for what writes"
            " outside its arrays"
        )

    def _wait_for_room(self, entries: list[bytes]) -> None:
        room = sum(entry_bytes(len(entry)) for entry in entries)
        if room > self._memory.outbox_bytes:
            raise TrainerError(
                f"the {len(entries)} updates of this send take {room} bytes and the daemon's outbox holds"
                f" {self._memory.outbox_bytes}: give more tensors the same step"
            )
        self._waiting.until_room(room)
