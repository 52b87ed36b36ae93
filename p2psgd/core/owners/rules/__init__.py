"""Rules make changes of the gradients that nodes contribute: one file each, behind one interface (rule.py).

Contributions that are changes, which is all that the rule `sum` has, are added up without a rule.
"""

from __future__ import annotations

from p2psgd.core.owners.rules.adagrad import Adagrad
from p2psgd.core.owners.rules.adamw import AdamW
from p2psgd.core.owners.rules.nesterov import Nesterov
from p2psgd.core.owners.rules.rule import OwnerRule
from p2psgd.wire.rule import Rule


def make_rule(rule: Rule) -> OwnerRule | None:
    """Return a rule whose state is zero; None for `sum`."""
    settings = dict(rule.settings)
    match rule.name:
        case "adagrad":
            return Adagrad(**settings)
        case "adamw":
            return AdamW(**settings)
        case "nesterov":
            return Nesterov(**settings)
        case _:
            return None
