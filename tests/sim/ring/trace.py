"""Ring events and frames in a few words, for the trace of a run."""

from __future__ import annotations

from p2psgd.core.events import RingChunk, RingUpdate, RoundMessage
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import RingBegin, RingBucket
from p2psgd.wire.ring_messages import (
    RESULT_HOP,
    BucketContributed,
    ContributionMade,
    RingState,
    parse_ring_chunk,
    parse_ring_state,
    parse_ring_update,
)


def describe_share(event: ContributionMade | BucketContributed) -> str:
    """One line."""
    match event:
        case ContributionMade():
            return f"gives a share of {len(event.updates)} updates"
        case BucketContributed():
            return f"gives the bucket {event.name} {event.shape} at {event.offset} of {event.count} numbers"


def describe_round_message(message: RoundMessage) -> str:
    """One line."""
    match message:
        case RingUpdate():
            return describe_update(bytes(message.body))
        case RingBucket():
            return describe_bucket(message)
        case RingChunk():
            return describe_chunk(bytes(message.body))


def describe_frame(frame_type: FrameType, body: bytes) -> str:
    """A RING_UPDATE or RING_CHUNK."""
    return describe_update(body) if frame_type is FrameType.RING_UPDATE else describe_chunk(body)


def describe_update(body: bytes) -> str:
    """The body of a RING_UPDATE."""
    header, rest = parse_ring_update(body)
    what = f"part {header.part + 1} of {header.parts}" if header.parts else "nothing"
    who = f"of node {header.node}, {len(rest)} bytes"
    return f"[{header.view}.{header.generation}] round {header.round}: {what} {who}"


def describe_chunk(body: bytes) -> str:
    """The body of a RING_CHUNK, or its head alone."""
    header, numbers = parse_ring_chunk(body + b"\0")
    hop = "result" if header.hop == RESULT_HOP else f"hop {header.hop}"
    what = f"bucket {header.bucket} {hop} at {header.offset}, {len(numbers) - 1} bytes"
    return f"[{header.view}.{header.generation}] round {header.round}: {what} of {header.contributors} nodes"


def describe_bucket(bucket: RingBucket) -> str:
    """A RING_BUCKET."""
    hop = " as a result" if bucket.hop == RESULT_HOP else ""
    what = (
        f"bucket {bucket.bucket}{hop} kind {bucket.kind} at {bucket.offset} of {bucket.count} {bucket.shape}"
    )
    return f"[{bucket.view}.{bucket.generation}] round {bucket.round}: {what}"


def describe_begin(begin: RingBegin) -> str:
    """A RING_BEGIN."""
    return f"RING_BEGIN [{begin.view}.{begin.generation}] round {begin.round}"


def describe_state(packed: bytes | RingState | None) -> str:
    """The ring's part of a STATUS; empty in asynchronous mode."""
    if not packed:
        return ""
    state = parse_ring_state(packed) if isinstance(packed, bytes) else packed
    flags = ("running", state.running), ("active", state.active), ("contributed", state.contributed)
    words = " ".join(word for word, flag in flags if flag)
    return f" ring {state.generation} done {state.round} {words}"


def _name(origin: Origin) -> str:
    return f"{origin.node}.{origin.incarnation}"
