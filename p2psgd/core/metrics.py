"""Counts kept by a replica since this incarnation of the node began; every count only grows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Amounts of updates and bytes that went through the replica."""

    applied: int = 0  # peers' updates
    bytes_applied: int = 0  # of frames, own and peers'
    duplicates: int = 0
    indices_sent: int = 0
    own_bytes: int = 0  # of frames of own updates
    acknowledged: int = 0  # own updates that at least one peer has acknowledged


@dataclass(slots=True)
class Counters:
    """Counts of rare things; for people, and for tests that must have seen them."""

    snapshots_given: int = 0
    snapshots_taken: int = 0
    evictions_seen: int = 0  # members, this node among them, that a view left out against their will
    reapplied: int = 0  # own updates that a snapshot lacked and that were applied to it again
    lost_updates: int = 0  # known to have been made, and held by nobody any more
    scrubs: int = 0  # digests recomputed from the coordinates as they lie in memory
    quarantines: int = 0  # scrubs that found another digest than the one kept
    mendings: int = 0  # of those, how many this node mended from its checkpoint and its log
    held_back: int = 0  # peers' updates not taken for lack of room in the log, and asked for again later
    lost_durability: int = 0  # updates that left the log before every member had them on disk
