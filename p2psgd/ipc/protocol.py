"""The protocol of the control socket: requests, answers, and datagrams with descriptors."""

from __future__ import annotations

import array
import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgpack
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import QUANTUM_LOG2_MIN, RunProposal
from p2psgd.ipc.tensor_table import RANK_MAX, TENSORS_MAX, pack_tensors, parse_tensors
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAsked, parse_exponents, parse_leases
from p2psgd.wire.fixed_point import GROUPS_MAX, PORTIONS_MAX
from p2psgd.wire.messages import HELD_MAX, Fields, unpack_map
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError

# ----------------------------------------------------------------------------
# What may come in over the control socket: one MessagePack map a datagram, read strictly.
#
# Each request is a pydantic model with exactly its keys and no conversions; sizes are bounded before
# anything is built. Whatever is wrong becomes one TrainerError whose sentence is the answer.


VERSION = 13  # of the control protocol and of the memory's layout
REQUEST_BYTES_MAX = 128 * 1024
ARRAY_MAX = 8192  # elements in one: a status has 1,024 peers, a script's state 4,096 arrays
COUNT_MAX = 2**63 - 1  # what every reader of the status can hold

Size = Annotated[int, Field(ge=1, le=codec.WEIGHTS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Shape = Annotated[tuple[Size, ...], Field(max_length=RANK_MAX)]
TensorTable = Annotated[
    tuple[tuple[Name, Shape], ...],
    Field(min_length=1, max_length=TENSORS_MAX),
    BeforeValidator(lambda table: parse_tensors(table) if isinstance(table, bytes) else table),
]
Figure = Annotated[float, Field(ge=0)]
ModeWord = Annotated[str, AfterValidator(lambda word: parse_mode(word).word)]


class Strict(BaseModel):
    """Exactly these keys, exactly these types, no NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StatusRequest(Strict):
    """Asks for the daemon's status."""

    op: Literal["status"] = "status"


class CompressionRequest(Strict):
    """Asks how the daemon's own updates compress, tensor by tensor: a datagram beside the status's."""

    op: Literal["compression"] = "compression"


class DigestRequest(Strict):
    """Asks whether the replicas are equal; `scrub`: recompute the own digest from the weights now."""

    op: Literal["digest"] = "digest"
    scrub: bool


class RemoveRequest(Strict):
    """Asks for the next view to leave out a node, by name or id; `forbid`: never admit it again."""

    op: Literal["remove"] = "remove"
    node: Annotated[str, Field(min_length=1, max_length=64)]
    forbid: bool


class MemberRequest(Strict):
    """Asks for the state of the node with this id in the latest view."""

    op: Literal["member"] = "member"
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class ViewRankRequest(Strict):
    """Asks for the node's place among the members of the latest view, and for their number."""

    op: Literal["view-rank"] = "view-rank"


class ReplicaRequest(Strict):
    """Asks for a copy of the replica, in a memfd."""

    op: Literal["replica"] = "replica"


class FinishRequest(Strict):
    """Asks the trainer to stop after its current step."""

    op: Literal["finish"] = "finish"


class ReloadRequest(Strict):
    """A fresh copy of the replica for the attached trainer; `differed`: since its weights were not the same
    where they should have been.
    """

    op: Literal["reload"] = "reload"
    differed: bool = False


class CompareRequest(Strict):
    """Asks what the digest of the attached trainer's weights must be."""

    op: Literal["compare"] = "compare"


class DetachRequest(Strict):
    """The attached trainer leaves; `finished`: it has done all it was asked to do."""

    op: Literal["detach"] = "detach"
    finished: bool


class StateRequest(Strict):
    """The attached trainer's state between two mini-batches, as the daemon has asked for.

    The residual lies beside its halves; a memfd that can never change comes with what the script keeps, if it
    keeps anything. The state is that after `steps`, whose updates end at position `outbox`. `unasked`: only
    the script's part, which the daemon has not asked for.
    """

    op: Literal["state"] = "state"
    steps: Annotated[int, Field(ge=0, le=COUNT_MAX)]
    outbox: Annotated[int, Field(ge=0, le=COUNT_MAX)]
    unasked: bool = False


class ReportRequest(Strict):
    """Figures of the attached trainer, for people; those left out stay as they were. It gets no answer.

    The last ones are the times of `timed_steps` steps of this process together: the first four make up the
    whole, the daemon's are within the same time.
    """

    op: Literal["report"] = "report"
    samples: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    samples_per_s: Figure = 0.0
    loss: float | None = None
    test_accuracy: float | None = None
    waits: Annotated[str, Field(max_length=500)] = ""
    epoch: Figure = 0.0
    step: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    of: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    batch: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    iteration: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    gradient_norm: Figure | None = None
    step_length: Figure | None = None
    timed_steps: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    computing_s: Figure = 0.0
    waiting_s: Figure = 0.0
    adding_s: Figure = 0.0
    sending_s: Figure = 0.0
    daemon_adding_s: Figure = 0.0
    daemon_sending_s: Figure = 0.0


class EvaluateRequest(Strict):
    """Asks for an evaluation, or for what comes next of it (wire.evaluation.EvaluationAsked).

    `added` is packed, u16 each; `computed` is -1 for none.
    """

    op: Literal["evaluate"] = "evaluate"
    evaluation: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    digest: Annotated[int, Field(ge=0, le=2**64 - 1)]
    portions: Annotated[int, Field(ge=1, le=PORTIONS_MAX)]
    sum: Annotated[int, Field(ge=0, le=COUNT_MAX)]
    added: Annotated[bytes, Field(max_length=2 * HELD_MAX)] = b""
    computed: Annotated[int, Field(ge=-1, lt=PORTIONS_MAX)] = -1
    checksum: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    exponents: Annotated[bytes, Field(max_length=2 * GROUPS_MAX)] = b""
    failed: Annotated[str, Field(max_length=1000)] = ""

    def asked(self, groups: int) -> EvaluationAsked:
        """Return what it asks in a run of `groups` groups; TrainerError if that cannot be."""
        try:
            added = parse_leases(self.added, self.portions)
            if self.computed >= self.portions:
                raise TrainerError(f"portion {self.computed} of {self.portions}")
            if self.computed >= 0 and not self.failed:
                parse_exponents(self.exponents, groups)
        except PeerError as error:
            raise TrainerError(f"malformed request: {error}") from None
        computed = None if self.computed < 0 else self.computed
        fields = (self.evaluation, self.digest, self.portions, self.sum, added, computed, self.checksum)
        return EvaluationAsked(*fields, self.exponents, self.failed)


class ProposedRun(Strict):
    """The run that a trainer proposes; its initial coordinates come in a memfd."""

    tensors: TensorTable
    quantum_log2: Annotated[int, Field(ge=QUANTUM_LOG2_MIN, le=0)]
    mode: ModeWord
    label: Annotated[str, Field(max_length=200)]
    two_nodes: Literal["stall", "lower-id"] = "stall"
    shards: Annotated[int, Field(ge=0, le=codec.WEIGHTS_MAX // codec.COUNTS_PER_SHARD)] = 0

    def proposal(self) -> RunProposal:
        """Return the proposal as a plain value; TrainerError if a name stands twice or the weights are too
        many.
        """
        name, times = Counter(name for name, _ in self.tensors).most_common(1)[0]
        if times > 1:
            raise TrainerError(f"the name {name!r} stands for {times} tensors; each needs its own")
        fields = (self.tensors, self.quantum_log2, self.mode, self.label, self.two_nodes, self.shards)
        proposal = RunProposal(*fields)
        if proposal.coordinates > codec.WEIGHTS_MAX:
            counts = f", {proposal.coordinates} with the shard counts" if self.shards else ""
            raise TrainerError(
                f"the tensors hold {proposal.weights} weights{counts}; at most {codec.WEIGHTS_MAX} are"
                " possible"
            )
        return proposal


class AttachRequest(Strict):
    """A trainer attaches, to the run it proposes or (None) to the one that the daemon knows."""

    op: Literal["attach"] = "attach"
    version: int
    pid: Annotated[int, Field(ge=1, le=2**31)]
    run: ProposedRun | None


Request = (
    StatusRequest
    | CompressionRequest
    | DigestRequest
    | RemoveRequest
    | MemberRequest
    | ViewRankRequest
    | ReplicaRequest
    | FinishRequest
    | ReloadRequest
    | CompareRequest
    | StateRequest
    | DetachRequest
    | ReportRequest
    | EvaluateRequest
    | AttachRequest
)
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])


def pack_request(request: Request) -> bytes:
    """Return the datagram of a request, with the keys that were set; TrainerError if it is over 128 KiB."""
    fields = {**request.model_dump(exclude_unset=True), "op": request.op}
    if isinstance(request, AttachRequest) and request.run is not None:
        fields["run"]["tensors"] = pack_tensors(request.run.tensors)
    datagram: bytes = msgpack.packb(fields)
    if len(datagram) > REQUEST_BYTES_MAX:
        raise TrainerError(
            f"a request takes {len(datagram)} bytes, at most {REQUEST_BYTES_MAX} are possible: use fewer"
            " tensors or shorter names"
        )
    return datagram


def parse_request(datagram: bytes) -> Request:
    """Return the request in a datagram; TrainerError with a sentence if it is not exactly one."""
    return parse_fields(unpack_datagram(datagram, bytes_max=REQUEST_BYTES_MAX, array_max=0))


def parse_fields(fields: Fields) -> Request:
    """Return the request that these fields make up, `op` among them; TrainerError if it is not exactly
    one.
    """
    try:
        return _REQUEST.validate_python(fields)
    except ValidationError as error:
        raise TrainerError(f"malformed request: {describe_fault(error)}") from None


def describe_fault(error: ValidationError) -> str:
    """Return the first fault that pydantic found, as `place: what`, bounded and without the hostile value."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place!r:.100}: {fault['msg']:.200}" if place else f"{fault['msg']:.200}"


def unpack_datagram(
    datagram: bytes, *, bytes_max: int, array_max: int = ARRAY_MAX, lists: bool = False
) -> Fields:
    """Return the MessagePack map in a datagram; TrainerError if it is longer than `bytes_max` or none."""
    if len(datagram) > bytes_max:
        raise TrainerError(f"a datagram of more than {bytes_max} bytes")
    try:
        return unpack_map(datagram, array_max=array_max, lists=lists)
    except ValueError as error:
        raise TrainerError(f"a datagram that is no MessagePack map: {error}") from None


# ----------------------------------------------------------------------------
# What the daemon answers on the control socket: {"ok": true, ...} or {"ok": false, "error": sentence}.
#
# The other side checks answers as strictly as the daemon checks requests, so a daemon of another version is
# named as such instead of being misread.


ANSWER_BYTES_MAX = (
    160 * 1024
)  # a status names every peer; one datagram must still fit a default socket buffer
ERROR_CHARACTERS_MAX = 2000

U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
PeerSteps = tuple[tuple[U64, U64], ...]
SomeAnswer = TypeVar("SomeAnswer", bound="Strict")


class ReplicaAnswer(Strict):
    """A copy of the replica, int32 (coordinates,), comes with it in a memfd: first the weights. A second
    memfd holds what the script keeps, if it keeps anything.
    """

    weights: Count
    coordinates: Count
    mode: str
    quantum_log2: int
    tensors: TensorTable
    digest: U64


class ViewRankAnswer(Strict):
    """The node's place among the members of the latest view, counted from 0, and their number."""

    rank: Count
    world_size: Annotated[int, Field(ge=1, le=COUNT_MAX)]


class ReloadAnswer(Strict):
    """Comes with a copy of the replica; updates it lacks lie in the inbox from position `inbox` on."""

    inbox: Count
    peer_steps: PeerSteps


class CompareAnswer(Strict):
    """The digest under `key` of weights with all that the trainer has published and all that the inbox holds
    up to position `inbox` in them; None: nobody knows.
    """

    inbox: Count
    key: U64
    digest: U64 | None


class AttachAnswer(Strict):
    """Carries everything that a trainer must know.

    With it come [replica, residual, inbox, outbox, counters, wake_trainer, wake_daemon], in a dense ring
    [contributions, sums], in mode `closure` [parts, totals], and at last the state that the script kept
    (script_state.py) if there is one.
    """

    generation: Annotated[int, Field(ge=1, le=2**32 - 1)]
    node: str
    node_id: U64
    rank: tuple[int, int] | None
    weights: Annotated[int, Field(ge=1)]
    shards: Count
    quantum_log2: int
    mode: ModeWord
    tensors: TensorTable
    inbox_bytes: Annotated[int, Field(ge=8)]
    outbox_bytes: Annotated[int, Field(ge=8)]
    steps: Count
    residual_age: Count  # mini-batches that the residual is behind
    peer_steps: PeerSteps

    @property
    def coordinates(self) -> int:
        """Return C: how many coordinates a replica has, weights and shard counts together."""
        return self.weights + codec.COUNTS_PER_SHARD * self.shards


class EvaluateAnswer(Strict):
    """The answer to EvaluateRequest (wire.evaluation.EvaluationAnswered); -1 stands for no portion."""

    evaluation: Count
    sum: Count
    limits: bytes
    add: tuple[Count, ...]
    drop: tuple[Count, ...]
    compute: int
    prefetch: int
    done: bool
    error: str


class WaitAnswer(Strict):
    """The request is not done yet, and this is why; another answer follows, as late as it may be."""

    waits: Annotated[str, Field(min_length=1, max_length=ERROR_CHARACTERS_MAX)]


def pack_answer(fields: Fields) -> bytes:
    """Return the datagram of a good answer; TrainerError if it is larger than one may be."""
    datagram: bytes = msgpack.packb({"ok": True, **fields})
    if len(datagram) > ANSWER_BYTES_MAX:
        raise TrainerError(f"the answer takes {len(datagram)} bytes, at most {ANSWER_BYTES_MAX} are possible")
    return datagram


STOPPED: Final = "the daemon has stopped"  # the last words of one that ends


def pack_refusal(words: str, *, contribution: bool = False) -> bytes:
    """Return the datagram that refuses a request, or the last words before the daemon closes a connection;
    `contribution`: because of the trainer's contribution to a round.
    """
    fields = {"ok": False, "error": words[:ERROR_CHARACTERS_MAX]}
    refusal: bytes = msgpack.packb({**fields, "contribution": True} if contribution else fields)
    return refusal


def rejects_contribution(datagram: bytes) -> bool:
    """Return whether the daemon closed because of the trainer's contribution to a round."""
    return unpack_datagram(datagram, bytes_max=ANSWER_BYTES_MAX).get("contribution") is True


def parse_answer(datagram: bytes, *, lists: bool = False) -> tuple[Fields, str | None]:
    """Return the fields of a good answer and None, or {} and the daemon's sentence; TrainerError if
    neither.
    """
    fields = unpack_datagram(datagram, bytes_max=ANSWER_BYTES_MAX, lists=lists)
    ok, error = fields.pop("ok", None), fields.get("error")
    if ok is True:
        return fields, None
    if ok is False and isinstance(error, str):
        return {}, error
    raise TrainerError("the daemon's answer is neither good nor a refusal; is it of another version?")


def check_answer(model: type[SomeAnswer], fields: Fields) -> SomeAnswer:
    """Return the fields of a good answer as their model; TrainerError if they do not fit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        count = error.error_count()
        raise TrainerError(
            f"the daemon's answer has {count} unexpected fields; are daemon and trainer of one version?"
        ) from None


# ----------------------------------------------------------------------------
# Datagrams with file descriptors on a SOCK_SEQPACKET socket, both ways.
#
# Like socket.send_fds and recv_fds, which in Python 3.11 ignore their flags: descriptors that come in must
# not leak into programs that the daemon starts, and no call may block where the caller says so.
#
# `sent` and `received` are lists that a system call's result is put into with nothing in between: `extend`
# over a `map` runs no bytecode there, and only between bytecodes can a signal's handler raise. However a
# caller is interrupted, they tell what has happened.


DESCRIPTORS_MAX = 16  # more than any message carries


Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]  # what recvmsg returns


@dataclass(frozen=True, slots=True)
class Datagram:
    """A received datagram; the receiver owns its descriptors. `truncated`: it was too large."""

    data: bytes
    descriptors: list[int]
    truncated: bool


def send_datagram(
    connection: socket.socket,
    data: bytes,
    descriptors: Sequence[int] = (),
    *,
    wait: bool = False,
    sent: list[int] | None = None,
) -> None:
    """Send one datagram; `sent` gets its length.

    BlockingIOError if it would have to wait and may not, OSError if the connection is gone.
    """
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    flags = 0 if wait else socket.MSG_DONTWAIT
    lengths = [] if sent is None else sent
    lengths.extend(map(connection.sendmsg, ([data],), (ancillary,), (flags,)))


def receive_datagram(connection: socket.socket, bytes_max: int) -> Datagram:
    """Receive one datagram of at most `bytes_max` bytes; no data: the other side has closed.

    BlockingIOError if none is there, OSError if the connection was reset.
    """
    received: list[Received] = []
    receive_into(received, connection, bytes_max)
    return datagram_of(received[0])


def receive_into(received: list[Received], connection: socket.socket, bytes_max: int) -> None:
    """Receive a datagram as `receive_datagram` does, and append it to `received`, for `datagram_of`."""
    room = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    received.extend(map(connection.recvmsg, (bytes_max,), (room,), (flags,)))


def datagram_of(received: Received) -> Datagram:
    """Return what was received as a datagram, with its descriptors taken out of it."""
    data, ancillary, found, _ = received
    descriptors = array.array("i")
    for level, kind, contents in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(contents[: len(contents) // descriptors.itemsize * descriptors.itemsize])
    return Datagram(data, list(descriptors), bool(found & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))


def close_descriptors(descriptors: Iterable[int]) -> None:
    """Close all these descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
