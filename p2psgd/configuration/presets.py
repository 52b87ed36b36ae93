"""What to start from, by the network that the nodes are on; all that is said explicitly is stronger.

Few and small on purpose: patience is the one time setting and all other times follow from it, and the budgets
of the log fit every network. The defaults are those of a LAN.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final


class Preset(enum.StrEnum):
    """--preset"""

    LOCAL = "local"
    LAN = "lan"
    WAN = "wan"


PRESETS: Final[Mapping[Preset, Mapping[str, Any]]] = {
    # Nodes of one machine: reached by nobody else. They share one disk, and a snapshot over loopback comes
    # sooner than what a log on that disk would replay.
    Preset.LOCAL: {"listen": "127.0.0.1:7315", "log_disk_budget": 0},
    Preset.LAN: {},
    # A lost segment is sent again after 1, 2, 4 and 8 s in the worst case, and routers may take tens of
    # seconds to find another way: neither is a reason to leave a node out. A dead one is noticed later.
    Preset.WAN: {"patience": 20.0},
}
