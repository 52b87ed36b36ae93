"""Logs for tests: what is put in, and what can be had of them again."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import ENTRY_BYTES, OriginLog, UpdateLog
from tests.core.stores import MemoryStore

A, B, C = Origin(1, 7), Origin(2, 7), Origin(3, 7)
PLENTY = 1 << 30
ENTRY = 40 + ENTRY_BYTES


def frame_of(origin: Origin, sequence: int, length: int = 40) -> bytes:
    return f"{origin.node} {sequence} ".encode().ljust(length, b".")


def filled(log: UpdateLog, *runs: tuple[Origin, int, int]) -> UpdateLog:
    """With updates first..last of each origin, in this order."""
    for origin, first, last in runs:
        for sequence in range(first, last + 1):
            log.append(origin, sequence, frame_of(origin, sequence))
    return log


def held(log: UpdateLog, origin: Origin) -> list[int]:
    """Sequences of the origin that the log can give, checked for what they are."""
    sequences = list(range(log.trimmed_to(origin) + 1, log.last(origin) + 1))
    assert log.frame(origin, log.trimmed_to(origin)) is None
    assert log.frame(origin, log.last(origin) + 1) is None
    assert [log.frame(origin, sequence) for sequence in sequences] == [
        frame_of(origin, sequence) for sequence in sequences
    ]
    return sequences


def everywhere(sequence: int) -> Callable[[Origin], int]:
    return lambda _: sequence


NOTHING = everywhere(0)
ALL = everywhere(PLENTY)


def check_accounts(log: UpdateLog, store: MemoryStore) -> None:
    total = sum(
        len(log.frame(origin, sequence) or b"")
        for origin in (A, B, C)
        for sequence in range(log.trimmed_to(origin) + 1, log.last(origin) + 1)
    )
    stored = sum(len(frame) for handle, frame in store.frames.items() if handle not in store.freed)
    assert log.bytes_stored == stored
    assert log.bytes_held + log.bytes_stored == total + len(log) * ENTRY_BYTES
    assert log.bytes_stored <= log.store_budget_bytes
    assert 0 <= log.pinned_bytes(NOTHING) - (total + len(log) * ENTRY_BYTES) + 3 <= 3  # rounded down


def adopt(
    log: UpdateLog, frontier: dict[Origin, int], tail: list[tuple[Origin, int]], length: int = 40
) -> None:
    """A snapshot at that frontier with those frames is taken, and what is beyond it applied again."""
    lanes = {origin: OriginLog(sequence) for origin, sequence in frontier.items()}
    for origin, sequence in sorted(tail, reverse=True):
        assert sequence == lanes[origin].trimmed_to
        log.receive(lanes[origin], frame_of(origin, sequence, length))
    beyond = {
        origin: sum(len(log.frame(origin, n) or b"") for n in range(sequence + 1, log.last(origin) + 1))
        for origin, sequence in frontier.items()
    }
    log.adopt(lanes, beyond)
    while log.untidy:
        log.tidy()
