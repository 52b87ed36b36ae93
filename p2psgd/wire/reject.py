"""Reject codes: why a connection ends, as a number that travels and as words that each side makes of it."""

from __future__ import annotations

import enum
from typing import Final, Self

from p2psgd.base.errors import P2psgdError


class RejectCode(enum.IntEnum):
    """The code of a REJECT, a u16; APPEND ONLY.

    `label` is the name under which the status counts it, and `sentence` explains it to people where nothing
    more is known.
    """

    label: str
    sentence: str

    def __new__(cls, number: int, label: str, sentence: str) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.label, code.sentence = label, sentence
        return code

    OTHER = 0, "other", "the other side gives no reason that this version of p2psgd knows"
    PROTOCOL = 1, "protocol", "the two speak different versions of the protocol"
    RUN = 2, "run", "the two train different runs"
    IDENTITY = 3, "identity", "two daemons have the same node id"
    SUPERSEDED = 4, "superseded", "a newer incarnation of the node is linked"
    BEHIND = 5, "behind", "a newer incarnation of the node is known, and not linked"
    SELF = 6, "self", "this is the node itself"
    DUPLICATE = 7, "duplicate", "another connection between these two nodes is in use"
    DOCTOR = 8, "doctor", "the answer to a doctor, or of one"
    AHEAD = 9, "ahead", "the incarnation is higher than any clock allows"
    NAME = 10, "name", "the node's name has the form of a node id"
    CERTIFICATE = 11, "another node's certificate", "the certificate is that of another node"
    LINKS = 12, "links", "the node has all the links that it may have"
    PLAINTEXT_ON_TLS_PORT = 13, "plaintext on a TLS port", "one side speaks plaintext, the other TLS"
    TLS_ON_PLAINTEXT_PORT = 14, "TLS on a plaintext port", "one side speaks TLS, the other plaintext"
    TLS = 15, "TLS", "TLS failed"
    FRAME_TYPE = 16, "frame type", "a frame has a type that is not known"
    FRAME_ORDER = 17, "frame order", "a frame came where its type is not allowed"
    FRAME_LENGTH = 18, "frame length", "a frame is empty or too long"
    MESSAGE = 19, "message", "a control message or one of its tables is malformed"
    UPDATE_LENGTH = 20, "update length", "an update is shorter or longer than its header says"
    CHECKSUM = 21, "checksum", "a checksum does not match"
    ENCODING = 22, "encoding", "the encoding of an update is not known"
    SEQUENCE = 23, "sequence", "an update has the wrong sequence number"
    MAGNITUDE = 24, "magnitude", "the magnitude of an update is out of range"
    COUNT = 25, "count", "an update changes too few or too many weights"
    PAYLOAD = 26, "payload", "the payload of an update cannot be decoded"
    DIGEST = 27, "digest", "the replicas differ, or an update does not fit its digest"
    ORIGIN = 28, "origin", "an update has an origin that cannot be"
    ORIGINS = 29, "origins", "the run would have too many origins"
    CLUSTER_ID = 30, "cluster id", "the two belong to runs that were bootstrapped apart"
    VIEW = 31, "view", "a view cannot be"
    FORBIDDEN = 32, "forbidden", "the node was removed from the run for good"
    SNAPSHOT = 33, "snapshot", "a snapshot or a part of one cannot be"
    RING = 34, "ring", "a frame of a ring cannot be"
    SILENT = 35, "silent", "nothing was heard for too long"
    SLOW = 36, "slow", "a snapshot made no progress for too long"
    CONTRIBUTION = 37, "contribution", "a contribution to an owner cannot be"
    COVER = 38, "cover", "what an owner's update takes into account cannot be"
    RULE_STATE = 39, "rule-state", "the state of an owner's rule cannot be"
    EVALUATION = 40, "evaluation", "a frame of an evaluation cannot be"


_CODES: Final = {int(code): code for code in RejectCode}
INCARNATION_CODES: Final = frozenset({RejectCode.SUPERSEDED, RejectCode.BEHIND})
TLS_CODES: Final = frozenset(
    {
        RejectCode.CERTIFICATE,
        RejectCode.PLAINTEXT_ON_TLS_PORT,
        RejectCode.TLS_ON_PLAINTEXT_PORT,
        RejectCode.TLS,
    }
)


class PeerError(P2psgdError):
    """A peer did something that the protocol forbids: its connection ends with a REJECT of this code.

    `details` say what exactly was wrong; without them the sentence for people is that of the code. `label` is
    the name under which the status counts it, that of the code unless another one is given.
    """

    def __init__(self, code: RejectCode, details: str = "", *, label: str = "") -> None:
        super().__init__(details or code.sentence)
        self.code = code
        self.details = details
        self.label = label or code.label


def rejection(number: int, details: str) -> PeerError:
    """Build the error for a REJECT of a peer, with a code that this version may not know."""
    code = _CODES.get(number)
    if code is not None:
        return PeerError(code, details)
    sentence = f"it rejects this node with code {number}, which this version of p2psgd does not know"
    whole = f"{sentence}: {details}" if details else sentence
    return PeerError(RejectCode.OTHER, whole, label=f"code {number}")
