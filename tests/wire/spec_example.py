"""The examples of SPEC.md, VIEWS.md, RINGS.md, OWNERS.md and EVALUATIONS.md, made by the code: `python -m
tests.wire.spec_example` writes its blocks into them.

Two nodes, a run of 30 weights, and one frame of each type. `test_spec.py` holds the specification to it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.view import View
from p2psgd.wire import codec
from p2psgd.wire.contribution import ContributionHeader, encode_words, pack_contribution
from p2psgd.wire.cover import NEW, CoverRow, pack_cover, pack_table
from p2psgd.wire.evaluation import Kind, Numbers, pack_numbers
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import (
    PROTOCOL_VERSION,
    Accept,
    Accepted,
    ConfirmedRow,
    Fetch,
    FrontierRow,
    Goodbye,
    Hello,
    MemberRow,
    Prepare,
    Promise,
    Reject,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    Trimmed,
    ViewNews,
    Welcome,
    pack_confirmed,
    pack_frontier,
    pack_members,
    pack_message,
)
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.ring_messages import (
    RingChunkHeader,
    RingState,
    RingUpdateHeader,
    pack_ring_chunk,
    pack_ring_state,
    pack_ring_update,
)
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.wire.arrays import uint32

SPECIFICATION: Final = [
    Path(codec.__file__).parent / name
    for name in ("SPEC.md", "VIEWS.md", "RINGS.md", "OWNERS.md", "EVALUATIONS.md")
]


def signed_words(signs: str) -> NDArray[np.uint32]:
    """The words of an update drawn as one character a weight: +, - or a space."""
    return uint32([index << 1 | (sign == "-") for index, sign in enumerate(signs) if sign != " "])


COORDINATES: Final = (np.arange(30) % 7 - 3).astype(np.int32)
RUN: Final = RunSpec(
    tensors=(("hidden.weight", (5, 5)), ("hidden.bias", (5,))),
    quantum_log2=-20,
    mode="async",
    label="example",
    initial=hash_coordinates(COORDINATES),
    two_nodes="stall",
)
WORDS: Final = uint32([2 << 1, 3 << 1 | 1, 17 << 1, 29 << 1])
CODED_SIGNS: Final = 40, signed_words("   ++ ++ --                   ++ +")  # weights, words
DENSE: Final = 12, signed_words("+- ++-- +-+-")
STEP: Final = 32
ANNA: Final = (0xA1, 1000)  # node, incarnation
BERT: Final = (0xB2, 2000)


def greeting(node: int, incarnation: int, name: str) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        node=node,
        incarnation=incarnation,
        name=name,
        run=RUN.fingerprint,
        weights=RUN.weights,
        quantum_log2=RUN.quantum_log2,
        mode=RUN.mode,
        label=RUN.label,
        rank=f"{'ab'.index(name[0])}/2",
    )


def blocks() -> dict[str, bytes]:
    """Name of a block of hexadecimal digits -> its bytes."""
    return {**exchange(), **views(), **rings(), **owners(), **evaluations()}


def status(rows: list[FrontierRow], *, loss: int = 0x7FC00000) -> Status:
    """What a node says that knows of no view."""
    return Status(
        frontier=pack_frontier(rows),
        view=0,
        cluster_id=0,
        ready=False,
        confirmed=b"",
        whole=True,
        evict_requests=b"",
        loss=loss,
        steps=0,
        ring=b"",
    )


def first_update() -> tuple[UpdateHeader, bytes]:
    """anna's, and its payload."""
    digest = codec.digest_words(WORDS, STEP, RUN.key)
    header = UpdateHeader(*ANNA, sequence=1, digest=digest, steps=1, magnitude=STEP, count=len(WORDS))
    return header, codec.encode(WORDS, RUN.weights)


def exchange() -> dict[str, bytes]:
    """Section 13."""
    header, payload = first_update()
    digest = header.digest
    node, incarnation = ANNA
    return {
        "initial": RUN.initial,
        "fingerprint": RUN.fingerprint,
        "key": RUN.key.to_bytes(8, "big"),
        "digest-before": codec.digest_coordinates(COORDINATES, RUN.key).to_bytes(8, "big"),
        "digest-of-update": digest.to_bytes(8, "big"),
        "payload": payload,
        "payload-coded": codec.encode(CODED_SIGNS[1], CODED_SIGNS[0]),
        "payload-dense": codec.encode(DENSE[1], DENSE[0]),
        "hello": pack_message(greeting(*ANNA, "anna")),
        "welcome": pack_message(Welcome(**greeting(*BERT, "bert").model_dump())),
        "status-empty": pack_message(status([])),
        "update": pack_frame(FrameType.UPDATE, pack_update(header, payload)),
        "status": pack_message(status([FrontierRow(*ANNA, 1, digest)], loss=0x40000000)),
        "fetch": pack_message(Fetch(node=node, incarnation=incarnation, first=1, last=1)),
        "trimmed": pack_message(Trimmed(node=node, incarnation=incarnation, trimmed_to=1)),
        "reject": pack_message(
            Reject(node=BERT[0], code=RejectCode.RUN, details="another run", incarnation=0)
        ),
        "goodbye": pack_message(Goodbye(sequence=1)),
    }


def views() -> dict[str, bytes]:
    """Section 24."""
    header, payload = first_update()
    members = pack_members([MemberRow(*ANNA, since=1), MemberRow(*BERT, since=1)])
    cluster_id = View().replace(dict([ANNA, BERT]), set(), set()).cluster_id
    value: dict[str, Any] = {"members": members, "forbidden": b"", "cluster_id": cluster_id}
    ballot: dict[str, Any] = {"view": 1, "round": 1, "node": ANNA[0]}
    row = FrontierRow(*ANNA, 1, header.digest, least=1, steps=1)
    coordinates = COORDINATES.copy()
    codec.apply_coordinates(coordinates, WORDS, STEP)
    digest = codec.digest_coordinates(coordinates, RUN.key)
    nothing: dict[str, Any] = {"members": b"", "forbidden": b"", "cluster_id": 0}
    of_member = Status(
        frontier=pack_frontier([row]),
        view=1,
        cluster_id=cluster_id,
        ready=True,
        confirmed=pack_confirmed([ConfirmedRow(*ANNA, 1)]),
        whole=True,
        evict_requests=b"",
        loss=0x7FC00000,
        steps=0,
        ring=b"",
    )
    return {
        "members": members,
        "cluster-id": cluster_id.to_bytes(8, "big"),
        "prepare": pack_message(Prepare(**ballot)),
        "promise": pack_message(Promise(**ballot, accepted_round=0, accepted_node=0, **nothing)),
        "accept": pack_message(Accept(**ballot, **value)),
        "accepted": pack_message(Accepted(**ballot)),
        "view": pack_message(ViewNews(view=1, **value)),
        "status-member": pack_message(of_member),
        "snapshot-request": pack_message(SnapshotRequest(view=2)),
        "snapshot-meta": pack_message(SnapshotMeta(frontier=pack_frontier([row]), digest=digest)),
        "snapshot-chunk": pack_frame(FrameType.SNAPSHOT_CHUNK, coordinates.astype("<i4").tobytes()),
        "snapshot-tail": pack_frame(FrameType.SNAPSHOT_TAIL, pack_update(header, payload)),
        "snapshot-end": pack_message(SnapshotEnd(reason="", tail=1)),
        "snapshot-refused": pack_message(SnapshotEnd(reason="busy with another copy: ask again", tail=0)),
    }


def rings() -> dict[str, bytes]:
    """Section 30."""
    header, payload = first_update()
    anna, bert = ANNA[0], BERT[0]
    tag: dict[str, Any] = {"view": 1, "generation": 1, "round": 1}
    digest = codec.digest_coordinates(COORDINATES, RUN.key)
    of_anna = RingUpdateHeader(**tag, node=anna, part=0, parts=1)
    of_bert = RingUpdateHeader(**tag, node=bert, part=0, parts=0)
    bucket = RingBucket(
        **tag, bucket=0, kind=0, offset=25, count=5, name="hidden.bias", shape="(5,)", hop=0, contributors=0
    )
    numbers = np.array([0.5, 0.5], "<f4").tobytes()
    chunk = RingChunkHeader(**tag, bucket=0, hop=0, offset=0, contributors=1)
    update = pack_update(header, payload)
    return {
        "ring-begin": pack_message(RingBegin(**tag, digest=digest)),
        "ring-update": pack_frame(FrameType.RING_UPDATE, pack_ring_update(of_anna, update)),
        "ring-update-empty": pack_frame(FrameType.RING_UPDATE, pack_ring_update(of_bert, b"")),
        "ring-state": pack_ring_state(RingState(1, 0, running=True, active=True, contributed=True)),
        "ring-bucket": pack_message(bucket),
        "ring-chunk": pack_frame(FrameType.RING_CHUNK, pack_ring_chunk(chunk, numbers) + numbers),
    }


def owners() -> dict[str, bytes]:
    """Section 37."""
    run = replace(RUN, mode="owners")
    words = WORDS[2:]  # bert's range begins with weight 15
    base, payload = encode_words(words, run.weights)
    contribution = ContributionHeader(number=1, magnitude=STEP, base=base, count=len(words))
    ending = ContributionHeader(number=2, magnitude=1, base=0, count=0, round=1)
    digest = codec.digest_words(words, STEP, run.key)
    first, second = (CoverRow(NEW, 1, *ANNA),), (CoverRow(0, 2),)
    update = UpdateHeader(*BERT, 1, digest, 1, STEP, len(words), base=base, cover=first)
    alone = UpdateHeader(*BERT, 2, digest, 3, 1, 0, cover=second)
    return {
        "owners-key": run.key.to_bytes(8, "big"),
        "contribution": pack_frame(FrameType.CONTRIBUTION, pack_contribution(contribution, payload)),
        "contribution-empty": pack_frame(FrameType.CONTRIBUTION, pack_contribution(ending, b"")),
        "cover": pack_cover(base, first),
        "update-covered": pack_frame(FrameType.UPDATE, pack_update(update, payload)),
        "update-cover": pack_frame(FrameType.UPDATE, pack_update(alone, b"")),
        "snapshot-cover": pack_frame(FrameType.SNAPSHOT_COVER, pack_table(BERT, [(ANNA, 3)])),
    }


def evaluations() -> dict[str, bytes]:
    """Section 44."""
    place = Numbers(Kind.TOTAL, evaluation=2, attempt=0, table=1, leader=BERT[0], offset=16)
    body = pack_numbers(place, np.array([-1, 2**40, 7], np.int64))
    return {"evaluation-numbers": pack_frame(FrameType.EVALUATION_NUMBERS, body)}


def fill(text: str) -> str:
    """The specification's text with its blocks as the code makes them."""
    made = blocks()

    def block(found: re.Match[str]) -> str:
        name = found.group(1)
        lines = textwrap.wrap(made[name].hex(" ", 1), 32 * 3)
        return "\n".join([f"```hex {name}", *lines, "```"])

    return re.sub(r"```hex (\S+)\n[^`]*```", block, text)


if __name__ == "__main__":
    for path in SPECIFICATION:
        path.write_text(fill(path.read_text()))
