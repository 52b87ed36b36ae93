"""What the daemon answers on the control socket: {"ok": true, ...} or {"ok": false, "error": sentence}.

The other side checks answers as strictly as the daemon checks requests, so a daemon of another version is
named as such instead of being misread.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgpack
from pydantic import Field, ValidationError

from p2psgd.errors import TrainerError
from p2psgd.ipc.requests import COUNT_MAX, ModeWord, Strict, unpack_datagram

ANSWER_BYTES_MAX = (
    160 * 1024
)  # a status names every peer; one datagram must still fit a default socket buffer
ERROR_CHARACTERS_MAX = 2000

U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
PeerMiniBatches = tuple[tuple[U64, U64], ...]
SomeAnswer = TypeVar("SomeAnswer", bound="Strict")


class ReplicaAnswer(Strict):
    """A copy of the replica, int32 (weights,), comes with it in a memfd."""

    weights: Count
    mode: str
    quantum_log2: int
    tensors: tuple[tuple[str, tuple[Count, ...]], ...]
    digest: U64


class ReloadAnswer(Strict):
    """A copy of the replica comes with it; updates it lacks lie in the inbox from position `inbox` on."""

    inbox: Count
    peer_mini_batches: PeerMiniBatches


class CompareAnswer(Strict):
    """The digest under `key` of weights with all that the trainer has published and all that the inbox holds
    up to position `inbox` in them; None: nobody knows.
    """

    inbox: Count
    key: U64
    digest: U64 | None


class AttachAnswer(Strict):
    """All that a trainer must know.

    With it come [weights, residual, inbox, outbox, counters, wake_trainer, wake_daemon], in a dense ring
    [shares, sums], and at last the state that the script kept (script_state.py) if there is one.
    """

    generation: Annotated[int, Field(ge=1, le=2**32 - 1)]
    node: str
    node_id: U64
    share: tuple[int, int] | None
    weights: Annotated[int, Field(ge=1)]
    quantum_log2: int
    mode: ModeWord
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    indices_max: Annotated[int, Field(ge=1)]
    inbox_bytes: Annotated[int, Field(ge=8)]
    outbox_bytes: Annotated[int, Field(ge=8)]
    mini_batches: Count
    residual_age: Count  # mini-batches that the residual is behind
    peer_mini_batches: PeerMiniBatches


class WaitAnswer(Strict):
    """The request is not done yet, and this is why; another answer follows, as late as it may be."""

    waits: Annotated[str, Field(min_length=1, max_length=ERROR_CHARACTERS_MAX)]


def pack_answer(fields: dict[str, Any]) -> bytes:
    """The datagram of a good answer; TrainerError if it is larger than one may be."""
    datagram: bytes = msgpack.packb({"ok": True, **fields})
    if len(datagram) > ANSWER_BYTES_MAX:
        raise TrainerError(f"the answer takes {len(datagram)} bytes, at most {ANSWER_BYTES_MAX} are possible")
    return datagram


def pack_refusal(words: str, *, share: bool = False) -> bytes:
    """The datagram that refuses a request, or the last words before the daemon closes a connection; `share`:
    because of what the trainer gave to a round.
    """
    fields = {"ok": False, "error": words[:ERROR_CHARACTERS_MAX]}
    refusal: bytes = msgpack.packb({**fields, "share": True} if share else fields)
    return refusal


def refuses_share(datagram: bytes) -> bool:
    """Whether these last words are about what the trainer gave to a round."""
    return unpack_datagram(datagram, bytes_max=ANSWER_BYTES_MAX).get("share") is True


def parse_answer(datagram: bytes, *, lists: bool = False) -> tuple[dict[str, Any], str | None]:
    """The fields of a good answer and None, or {} and the daemon's sentence; TrainerError if neither."""
    fields = unpack_datagram(datagram, bytes_max=ANSWER_BYTES_MAX, lists=lists)
    ok, error = fields.pop("ok", None), fields.get("error")
    if ok is True:
        return fields, None
    if ok is False and isinstance(error, str):
        return {}, error
    raise TrainerError("the daemon's answer is neither good nor a refusal; is it of another version?")


def check_answer(model: type[SomeAnswer], fields: dict[str, Any]) -> SomeAnswer:
    """The fields of a good answer as their model; TrainerError if they do not fit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        count = error.error_count()
        raise TrainerError(
            f"the daemon's answer has {count} unexpected fields; are daemon and trainer of one version?"
        ) from None
