"""Updates as they come out of the inbox, decoded and put together to be applied many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import PeerError, TrainerError
from p2psgd.wire import codec
from p2psgd.wire.update import UpdateHeader, parse_update

BATCH_UPDATES_MAX = 64  # received updates applied at a time: more gain little
BATCH_WORDS_MAX = 2**20  # of all of them: 4 MB, so that they stay in the last cache until they are applied

Batch = list[tuple[UpdateHeader, NDArray[np.uint32]]]  # the words lie one after the other


def batch_words_max(indices_max: int) -> int:
    """How many words the memory of a batch has room for, if one update has at most `indices_max`."""
    return max(indices_max, min(BATCH_WORDS_MAX, BATCH_UPDATES_MAX * indices_max))


def decode_batches(
    bodies: Iterable[bytes], weights: int, memory: Callable[[], NDArray[np.uint32]]
) -> Iterator[Batch]:
    """Decode UPDATE bodies for a replica of so many weights, batch after batch, none of them empty.

    `memory()` says where the words of the next batch go, (batch_words_max(),). TrainerError if a body does
    not check; the batches before it are whole.
    """
    batch: Batch = []
    room = memory()
    for body in bodies:
        try:
            header, payload = parse_update(body, weights)
            if header.count > room.size or len(batch) == BATCH_UPDATES_MAX:
                yield batch
                batch, room = [], memory()
            words, room = room[: header.count], room[header.count :]
            batch.append((header, codec.decode_into(payload, words, weights)))
        except PeerError as error:
            raise TrainerError(f"the daemon's inbox holds an update that does not check: {error}") from None
    if batch:
        yield batch
