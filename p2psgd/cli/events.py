"""`p2psgd events`: what happened to a node, and to each of its parts if it has some, read from disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import print_text, printable
from p2psgd.ipc.part import group_directory
from p2psgd.storage.event_log import Event, EventReader, follow, select_events

KIND_WIDTH: Final = 14
PART: Final = "part"  # of an event that is printed among those of other parts


def print_events(
    parts: Sequence[Path],
    find_state: Callable[[], Path],
    *,
    as_json: bool,
    follows: bool,
    kind: str | None,
    last: int | None,
) -> None:
    """Print the events of these `parts` and of the node that runs them, by time; where there are no parts,
    those of the node that `find_state` finds. With `follows` then those that come, until Ctrl+C or nobody
    reads on. UsageError if there are none.
    """
    places = [group_directory(parts[0].parent), *parts] if parts else [find_state()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        readers = {place: stack.enter_context(reader) for place, reader in _open(places)}
        absent = [place for place in places if place not in readers]

        def number_of(place: Path) -> int | None:
            return int(place.name.removeprefix("part-")) if place in parts else None

        def arrivals() -> Iterator[EventReader]:
            for place, reader in _open(absent, all_may_be_absent=True):
                absent.remove(place)
                numbers.append(number_of(place))
                yield stack.enter_context(reader)

        numbers = [number_of(place) for place in readers]
        kept = [
            _of_part(event, number)
            for number, reader in zip(numbers, readers.values(), strict=True)
            for event in reader.kept()
        ]
        if parts:
            kept.sort(key=lambda event: str(event["time"]))
        for event in select_events(kept, kind=kind, last=last):
            if not _show(event, as_json=as_json):
                return
        for place, event in follow([*readers.values()], arrivals) if follows else ():
            if kind in (None, event["kind"]) and not _show(_of_part(event, numbers[place]), as_json=as_json):
                return


def render_event(event: Event) -> str:
    """Return an event as one line for people: time, kind, its part, the peer it is about, the sentence."""
    who = f"part {event[PART]}: " if PART in event else ""
    who += f"{printable(event['node'])}: " if event.get("node", "") not in event["words"] else ""
    when = printable(event["time"])[:19].replace("T", " ")
    return f"{when}Z  {printable(event['kind']):<{KIND_WIDTH}}  {who}{printable(event['words'])}"


def _open(places: Sequence[Path], *, all_may_be_absent: bool = False) -> list[tuple[Path, EventReader]]:
    """Open the events in these directories; without those that have none, unless all have none."""
    readers: list[tuple[Path, EventReader]] = []
    trouble: UsageError | None = None
    for place in places:
        try:
            readers.append((place, EventReader(place)))
        except UsageError as error:
            if error.exit_code is not ExitCode.DATA:
                raise
            trouble = error
    if trouble is not None and not (readers or all_may_be_absent):
        raise trouble
    return readers


def _of_part(event: Event, part: int | None) -> Event:
    return event if part is None else {**event, PART: part}


def _show(event: Event, *, as_json: bool) -> bool:
    return print_text(json.dumps(event) if as_json else render_event(event))
