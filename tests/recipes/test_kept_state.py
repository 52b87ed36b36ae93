"""What one life keeps is what the next one reads."""

import numpy as np

from p2psgd.ipc.script_state import pack_state, unpack_state
from p2psgd.recipes.schedule import UNENDING
from p2psgd.recipes.training import KeptState, read_kept


def test_all_of_it_comes_back_from_the_daemon() -> None:
    kept = KeptState(
        steps=7,
        elapsed_s=1.5,
        warm_steps=UNENDING,
        tau=0.25,
        rate=0.1,
        loss=None,
        kept_at=2e9,
    )
    assert read_kept(unpack_state(np.concatenate(pack_state(kept.as_dict())))) == kept


def test_what_another_script_kept_is_nothing() -> None:
    assert read_kept(None) is None
    assert read_kept({"by": "mine", "steps": 3}) is None
