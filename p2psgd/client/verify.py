"""Verify that a trainer's copy of the weights is what its node has, by digests, without a copy of either.

Looked at now and then: a bit that has changed in the memory of a device, or a fault of what computes there,
shows nowhere else. The replica would stay right, and its trainer would compute gradients of other weights.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.base.formatting import say
from p2psgd.client.compute import Compute
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import CompareAnswer, CompareRequest, check_answer, close_descriptors
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.wire import codec

DIFFERS: Final = (
    "this trainer's copy of the weights was not what its node has: it is taken anew from there. If that"
    " happens again, test the memory that it lies in"
)
DIFFERS_AGAIN: Final = (
    "this trainer's copy of the weights differs from what it was copied from a moment ago: the memory that it"
    " lies in, or what computes there, cannot be trusted"
)


def ask_digest(client: ControlClient) -> CompareAnswer:
    """Ask for the digest that the attached trainer's weights must have, and after which updates."""
    try:
        fields, descriptors = client.exchange(CompareRequest())
    except UsageError as error:
        raise TrainerError(str(error)) from None
    close_descriptors(descriptors)
    return check_answer(CompareAnswer, fields)


def is_right(compute: Compute, answer: CompareAnswer) -> bool:
    """Return whether the weights, with the updates that the answer is about in them, are what they must be;
    report it if not.

    Right as well if the daemon cannot tell.
    """
    if answer.digest is None or compute.digest(answer.key) == answer.digest:
        return True
    say(DIFFERS)
    return False


def check_copy(compute: Compute, replica: int, coordinates: int, key: int) -> None:
    """Raise TrainerError if the weights, just copied from it, are not those of this sealed memfd of
    `coordinates` numbers.

    The daemon's memory may be what has changed, which it finds itself: so the copy is compared with what it
    was made from.
    """
    original = map_segment(replica, np.int32, coordinates, Access.SEALED)
    if compute.digest(key) != codec.digest_coordinates(original, key):
        raise TrainerError(DIFFERS_AGAIN)
