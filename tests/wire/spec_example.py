"""The example exchange of SPEC.md, made by the code: `python -m tests.wire.spec_example` prints its blocks.

Two nodes, a run of 30 weights, and one frame of each type. `test_spec.py` holds the specification to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import (
    PROTOCOL_VERSION,
    FrontierRow,
    Gap,
    Goodbye,
    Hello,
    Need,
    Reject,
    Status,
    Welcome,
    pack_frontier,
    pack_message,
)
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.wire.arrays import uint32


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
    )


def blocks() -> dict[str, bytes]:
    """Name of a block of hexadecimal digits in SPEC.md -> its bytes."""
    payload = codec.encode(WORDS, RUN.weights)
    digest = codec.digest_words(WORDS, STEP, RUN.key)
    header = UpdateHeader(*ANNA, sequence=1, digest=digest, mini_batch=1, step=STEP, count=len(WORDS))
    node, incarnation = ANNA
    applied = pack_frontier([FrontierRow(node, incarnation, 1, digest)])
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
        "status-empty": pack_message(Status(frontier=b"", loop_lag_ms=0)),
        "update": pack_frame(FrameType.UPDATE, pack_update(header, payload)),
        "status": pack_message(Status(frontier=applied, loop_lag_ms=3)),
        "need": pack_message(Need(node=node, incarnation=incarnation, first=1, last=1)),
        "gap": pack_message(Gap(node=node, incarnation=incarnation, floor=1)),
        "reject": pack_message(Reject(node=BERT[0], code="run", words="another run")),
        "goodbye": pack_message(Goodbye(sequence=1)),
    }


if __name__ == "__main__":
    for block_name, content in blocks().items():
        print(f"```hex {block_name}\n{content.hex(' ', 1)}\n```")
