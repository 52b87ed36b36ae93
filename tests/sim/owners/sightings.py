"""Events that a range of seeds must contain: without them it proves nothing about contributions."""

from __future__ import annotations

from typing import Final

MUST_OCCUR: Final = (
    "owners: contribution redealt",
    "owners: opposite of a redealt one contributed",
    "owners: range moved to another owner",
    "owners: what was added up given to another owner",
    "owners: what was added up handed over at an orderly stop",
    "owners: contribution sent again on a new link",
    "owners: contribution came twice",
    "owners: cover by a snapshot",
    "owners: cover of a redealt one by a snapshot",
    "owners: snapshot of a contributor from a donor that took one",
    "owners: second residual lost with a killed owner",
    "owners: owner died when its update had reached one node",
    "owners: trainer held up because too much waits",
    "owners: contributions given up",
    "owners: outside values passed on",
    "owners: update that covers and changes nothing",
    "owners: publication of several updates",
    "owners: round as if computed in one place",
    "owners: round by a rule as if computed in one place",
    "owners: late member left out",
    "owners: contribution to a round that was over",
    "all lost at once",
    "eviction",
    "readmission",
    "restart from checkpoint",
    "snapshot after a gap",
    "left the view",
    "removal for good",
    "joined with a fresh disk",
    "credit exhausted",
)
