"""All updates of a few weights, and all their payloads: what tests go through exhaustively."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from tests.wire import reference
from tests.wire.reference import DENSE, BlockChoice


def updates_of(weights: int) -> Iterator[list[int]]:
    """The words of every update of 1 to `weights` indices with every sign."""
    for digits in itertools.product((0, 1, 2), repeat=weights):
        words = [index << 1 | digit - 1 for index, digit in enumerate(digits) if digit]
        if words:
            yield words


@functools.cache
def valid_payloads(count: int, weights: int) -> dict[bytes, list[int]]:
    """Payload -> words, for all updates of `count` words, at most a block, and all choices."""
    choices = [
        DENSE,
        *((BlockChoice(k, m),) for k, m in itertools.product(range(reference.RICE_MAX + 1), range(8))),
    ]
    updates = [words for words in updates_of(weights) if len(words) == count]
    payloads = {reference.encode(words, weights, choice): words for words in updates for choice in choices}
    assert len(payloads) == len(updates) * len(choices), "two updates or choices have the same payload"
    return payloads
