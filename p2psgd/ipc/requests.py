"""What may come in over the control socket: one MessagePack map a datagram, read strictly.

Each request is a pydantic model with exactly its keys and no conversions; sizes are bounded before anything
is built. Whatever is wrong becomes one TrainerError whose sentence is the answer.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import msgpack
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from p2psgd.errors import TrainerError
from p2psgd.ipc.proposal import QUANTUM_LOG2_MIN, RunProposal, count_weights
from p2psgd.wire import codec
from p2psgd.wire.maps import unpack_map
from p2psgd.wire.mode import parse_mode

VERSION = 6  # of the control protocol and of the memory's layout
REQUEST_BYTES_MAX = 64 * 1024
TENSORS_MAX = 4096
COUNT_MAX = 2**63 - 1  # what every reader of the status can hold

Size = Annotated[int, Field(ge=1, le=codec.WEIGHTS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Shape = Annotated[tuple[Size, ...], Field(max_length=16)]
Figure = Annotated[float, Field(ge=0)]
ModeWord = Annotated[str, AfterValidator(lambda word: parse_mode(word).word)]


class Strict(BaseModel):
    """Exactly these keys, exactly these types, no NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StatusRequest(Strict):
    """The daemon's status."""

    op: Literal["status"] = "status"


class CompressionRequest(Strict):
    """How the daemon's own updates compress, tensor by tensor: a datagram beside the status's."""

    op: Literal["compression"] = "compression"


class DigestRequest(Strict):
    """Whether the replicas are equal; `scrub`: recompute the own digest from the weights now."""

    op: Literal["digest"] = "digest"
    scrub: bool


class RemoveRequest(Strict):
    """Leave a node, by name or id, out of the next view; `forbid`: never admit it again."""

    op: Literal["remove"] = "remove"
    node: Annotated[str, Field(min_length=1, max_length=64)]
    forbid: bool


class MemberRequest(Strict):
    """How the node of this id stands in the latest view."""

    op: Literal["member"] = "member"
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class ReplicaRequest(Strict):
    """A copy of the replica, in a memfd."""

    op: Literal["replica"] = "replica"


class FinishRequest(Strict):
    """Asks the trainer to stop after its current mini-batch."""

    op: Literal["finish"] = "finish"


class ReloadRequest(Strict):
    """A fresh copy of the replica for the attached trainer; `differed`: since its weights were not the same
    where they should have been.
    """

    op: Literal["reload"] = "reload"
    differed: bool = False


class CompareRequest(Strict):
    """What the digest of the attached trainer's weights must be."""

    op: Literal["compare"] = "compare"


class DetachRequest(Strict):
    """The attached trainer leaves; `finished`: it has done all it was asked to do."""

    op: Literal["detach"] = "detach"
    finished: bool


class StateRequest(Strict):
    """The attached trainer's state between two mini-batches, as the daemon has asked for.

    The residual lies beside its halves; a memfd that can never change comes with what the script keeps, if it
    keeps anything. The state is that after `mini_batches`, whose updates end at position `outbox`.
    """

    op: Literal["state"] = "state"
    mini_batches: Annotated[int, Field(ge=0, le=COUNT_MAX)]
    outbox: Annotated[int, Field(ge=0, le=COUNT_MAX)]


class ReportRequest(Strict):
    """Figures of the attached trainer, for people; those left out stay as they were. It gets no answer.

    The last ones say what so many `steps` of this process took together: the first four make up the whole,
    the daemon's are within the same time.
    """

    op: Literal["report"] = "report"
    samples: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    samples_per_s: Figure = 0.0
    loss: float | None = None
    test_accuracy: float | None = None
    waits: Annotated[str, Field(max_length=500)] = ""
    epoch: Figure = 0.0
    steps: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    computing_s: Figure = 0.0
    waiting_s: Figure = 0.0
    adding_s: Figure = 0.0
    sending_s: Figure = 0.0
    daemon_adding_s: Figure = 0.0
    daemon_sending_s: Figure = 0.0


class ProposedRun(Strict):
    """A run as a trainer proposes it; its initial coordinates come in a memfd."""

    tensors: Annotated[tuple[tuple[Name, Shape], ...], Field(min_length=1, max_length=TENSORS_MAX)]
    quantum_log2: Annotated[int, Field(ge=QUANTUM_LOG2_MIN, le=0)]
    mode: ModeWord
    label: Annotated[str, Field(max_length=200)]
    two_nodes: Literal["stall", "lower-id"] = "stall"

    def proposal(self) -> RunProposal:
        """The same as a plain value; TrainerError if a name stands twice or the weights are too many."""
        name, times = Counter(name for name, _ in self.tensors).most_common(1)[0]
        if times > 1:
            raise TrainerError(f"the name {name!r} stands for {times} tensors; each needs its own")
        weights = count_weights(self.tensors)
        if weights > codec.WEIGHTS_MAX:
            raise TrainerError(
                f"the tensors hold {weights} weights; at most {codec.WEIGHTS_MAX} are possible"
            )
        return RunProposal(self.tensors, self.quantum_log2, self.mode, self.label, self.two_nodes)


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
    | ReplicaRequest
    | FinishRequest
    | ReloadRequest
    | CompareRequest
    | StateRequest
    | DetachRequest
    | ReportRequest
    | AttachRequest
)
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])


def pack_request(request: Request) -> bytes:
    """The datagram of a request, with the keys that were set; TrainerError if it is over 64 KiB."""
    fields = {**request.model_dump(exclude_unset=True), "op": request.op}
    datagram: bytes = msgpack.packb(fields)
    if len(datagram) > REQUEST_BYTES_MAX:
        raise TrainerError(
            f"a request takes {len(datagram)} bytes, at most {REQUEST_BYTES_MAX} are possible: use fewer"
            " tensors or shorter names"
        )
    return datagram


def parse_request(datagram: bytes) -> Request:
    """The request in a datagram; TrainerError with a sentence if it is not exactly one."""
    return parse_fields(unpack_datagram(datagram, bytes_max=REQUEST_BYTES_MAX))


def parse_fields(fields: dict[str, Any]) -> Request:
    """The request that these fields make up, `op` among them; TrainerError if it is not exactly one."""
    try:
        return _REQUEST.validate_python(fields)
    except ValidationError as error:
        raise TrainerError(f"malformed request: {describe_fault(error)}") from None


def describe_fault(error: ValidationError) -> str:
    """The first fault that pydantic found, as `place: what`, bounded and without the hostile value."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place!r:.100}: {fault['msg']:.200}" if place else f"{fault['msg']:.200}"


def unpack_datagram(datagram: bytes, *, bytes_max: int, lists: bool = False) -> dict[str, Any]:
    """The MessagePack map in a datagram; TrainerError if it is longer than `bytes_max` or none."""
    if len(datagram) > bytes_max:
        raise TrainerError(f"a datagram of more than {bytes_max} bytes")
    try:
        return unpack_map(datagram, array_max=2 * TENSORS_MAX, lists=lists)
    except ValueError as error:
        raise TrainerError(f"a datagram that is no MessagePack map: {error}") from None
