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
        absent = [*places]

        def arrivals() -> Iterator[EventReader]:
            """Open those that have events by now."""
            for reader in _open(absent):
                absent.remove(reader.state)
                yield stack.enter_context(reader)

        readers = [*arrivals()] or [EventReader(places[-1])]  # which refuses, as there are none
        kept = [_of_part(event, reader.state, parts) for reader in readers for event in reader.kept()]
        if parts:
            kept.sort(key=lambda event: str(event["time"]))
        for event in select_events(kept, kind=kind, last=last):
            if not _show(event, as_json=as_json):
                return
        for reader, event in follow(readers, arrivals) if follows else ():
            named = _of_part(event, reader.state, parts)
            if kind in (None, event["kind"]) and not _show(named, as_json=as_json):
                return


def render_event(event: Event) -> str:
    """Return an event as one line for people: time, kind, its part, the peer it is about, the sentence."""
    who = f"part {event[PART]}: " if PART in event else ""
    who += f"{printable(event['node'])}: " if event.get("node", "") not in event["words"] else ""
    when = printable(event["time"])[:19].replace("T", " ")
    return f"{when}Z  {printable(event['kind']):<{KIND_WIDTH}}  {who}{printable(event['words'])}"


def _open(places: Sequence[Path]) -> list[EventReader]:
    """Open the events in these directories, without those that have none."""
    readers: list[EventReader] = []
    for place in places:
        try:
            readers.append(EventReader(place))
        except UsageError as error:
            if error.exit_code is not ExitCode.DATA:
                raise
    return readers


def _of_part(event: Event, place: Path, parts: Sequence[Path]) -> Event:
    return {**event, PART: int(place.name.removeprefix("part-"))} if place in parts else event


def _show(event: Event, *, as_json: bool) -> bool:
    return print_text(json.dumps(event) if as_json else render_event(event))
