from __future__ import annotations

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.observe.compression import Accounts
from p2psgd.wire import codec
from p2psgd.wire.update import OwnUpdateMade

SPEC = RunSpec((("a", (50, 20)),), -20, "async", "label", b"i" * 32, "stall")


def own_update(mini_batch: int) -> OwnUpdateMade:
    words = np.arange(0, 20, 2, dtype=np.uint32)
    return OwnUpdateMade(mini_batch, 7, codec.encode(words, SPEC.weights), words)


def test_before_the_run_is_known_there_is_nothing_to_tell() -> None:
    accounts = Accounts()
    assert accounts.totals() is accounts.compression() is None


def test_the_status_is_short_and_the_compression_whole() -> None:
    accounts = Accounts()
    accounts.begin(SPEC, Origin(1, 1), mini_batches=0)
    for mini_batch in (1, 2, 3):
        accounts.count(own_update(mini_batch))
    short, whole = accounts.totals(), accounts.compression()
    assert short is not None
    assert whole is not None
    assert (short.total, short.recent, short.tensors) == (whole.total, whole.recent, ())
    assert whole.total.updates == 3
    assert [row.indices for row in whole.tensors] == [30]
