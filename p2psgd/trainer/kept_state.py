"""What the built-in trainer has its daemon keep, so that a later life goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2psgd.trainer.plan import UNENDING

KEPT_BY = "p2psgd train, 1"  # which script's state it is, and its version


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """As of the last mini-batch; None: not known."""

    mini_batches: int
    elapsed_s: float = 0.0  # of a run by time
    gentle_batches: int = UNENDING  # mini-batches of the gentle start
    taus: tuple[float, ...] = ()
    rate: float | None = None  # the learning rate
    loss: float | None = None  # the running mean
    kept_at: float | None = None  # Unix time

    def as_dict(self) -> dict[str, Any]:
        """For Link.keep()."""
        known = {"rate": self.rate, "loss": self.loss, "kept_at": self.kept_at}
        return {
            "by": KEPT_BY,
            "mini_batches": self.mini_batches,
            "elapsed_s": self.elapsed_s,
            "gentle_batches": self.gentle_batches,
            "taus": np.array(self.taus),
            **{name: value for name, value in known.items() if value is not None},
        }


def read_kept(restored: Mapping[str, Any] | None) -> KeptState | None:
    """What an earlier life kept; None if nobody did, or another script."""
    if restored is None or restored.get("by") != KEPT_BY:
        return None
    fields = {name: value for name, value in restored.items() if name not in ("by", "taus")}
    return KeptState(**fields, taus=tuple(restored["taus"].tolist()))
