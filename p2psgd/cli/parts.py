"""Ask the daemon of each part of a model, where a node trains it in parts, and put the answers together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from p2psgd.base.errors import ExitCode, P2psgdError, UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.checkpoint_listing import describe, open_store, render_list
from p2psgd.cli.digest import Scrub, find_fault, render_digest
from p2psgd.cli.weights_file import Made, Written, fetch_arrays, write_arrays
from p2psgd.ipc import part
from p2psgd.ipc.client import ControlClient
from p2psgd.node.parts import read_parts
from p2psgd.observe.parts import parts_lines
from p2psgd.observe.status import read_status


def print_status(places: Sequence[Path], print_one: Callable[[Path], None], *, as_json: bool) -> None:
    """Print the status of each part, after that of what runs them; UsageError, after all that can be printed,
    if a daemon does not answer.
    """
    running = read_parts(places[0].parent)

    def show(place: Path) -> None:
        print_text(f"\n{place.name.replace('-', ' ')}")
        try:
            print_one(place)
        except P2psgdError as error:
            print_text(str(error))
            raise

    if running is not None and not as_json:
        print_text("\n".join(parts_lines(running)))
    ask: Callable[[Path], Any] = _status_of if as_json else show
    answers: list[Any] = []
    silent = []
    for place in places:
        try:
            answers.append(ask(place))
        except P2psgdError:
            answers.append(None)
            silent.append(place.name.removeprefix("part-"))
    if as_json:
        node = None if running is None else running.model_dump(mode="json")
        print_text(json.dumps({"node": node, "parts": answers}, indent=2))
    if silent:
        words = f"no answer about part {', '.join(silent)}"
        raise UsageError(words, ExitCode.TEMPORARY)


def _status_of(place: Path) -> Any:
    with ControlClient(place / "control.sock") as client:
        status = read_status(client.request("status")["status"])
    return status.model_dump(mode="json", exclude_unset=True)


def print_digest(places: Sequence[Path], connect: Callable[[Path], ControlClient], *, as_json: bool) -> None:
    """Print the report of each part and one digest of the run; UsageError if not all are proved equal."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(place)) for place in places]
        labels = [*map(_label_of, clients)]
        scrubs = [*map(Scrub, clients)]  # which take seconds, all at once
        reports = [scrub.report() for scrub in scrubs]
    faults = [f"part {index}: {fault}" for index, each in enumerate(reports) if (fault := find_fault(each))]
    try:
        _check_all_there(labels)
    except ValueError as error:
        faults.append(str(error))
    whole = part.combine_digests([report.digest for report in reports])
    if as_json:
        answers = [report.model_dump(mode="json") for report in reports]
        print_text(json.dumps({"digest": whole, "parts": answers}, indent=2))
    else:
        for index, report in enumerate(reports):
            print_text(f"part {index}\n{render_digest(report)}\n")
        print_text(describe_digests([report.digest for report in reports]))
    if faults:
        raise UsageError(f"equal replicas are not proved: {'; '.join(faults)}", ExitCode.FAILED)


def describe_digests(digests: Sequence[str]) -> str:
    """Return one line with the digest of the run and those of its parts."""
    each = ", ".join(f"part {index} {digest}" for index, digest in enumerate(digests))
    return f"digest of all parts {part.combine_digests(digests)}: {each}"


def print_checkpoints(places: Sequence[Path], *, as_json: bool) -> None:
    """Print the checkpoints of each part; UsageError, after all that there are, if a part has none."""
    listings: list[Any] = []
    faults = []
    for place in places:
        title = place.name.replace("-", " ")
        try:
            entries = open_store(place).entries()
        except UsageError as error:
            faults.append(f"{title}: {error}")
            listings.append([])
            continue
        listings.append([*map(describe, entries)])
        if not as_json:
            print_text(f"{title}\n{render_list(entries)}\n")
    if as_json:
        print_text(json.dumps({"parts": listings}, indent=2))
    if faults:
        raise UsageError("; ".join(faults), ExitCode.DATA)


def export_parts(clients: Sequence[ControlClient], path: Path) -> Written:
    """Write the whole tensors of all parts; UsageError if they cannot be put together or written."""
    made = [fetch_arrays(client)._replace(label=_label_of(client)) for client in clients]
    return write_arrays(path, put_together(made))


def export_places(places: Sequence[Path], path: Path) -> Written:
    """Write the whole tensors of the parts whose daemons have these state directories."""
    with ExitStack() as stack:
        clients = [stack.enter_context(ControlClient(place / "control.sock")) for place in places]
        return export_parts(clients, path)


def put_together(made: Sequence[Made]) -> Made:
    """Return the arrays of all parts as those of the whole model; UsageError if they do not fit.

    Stages of a pipeline have buffers and second names of their own, which begin with `part-K.` where several
    stages have the name, as tensors do. Ranks of another cut have all the same ones.
    """
    stages = all(part.is_stage(each.label) for each in made)
    try:
        _check_all_there([each.label for each in made])
        repeated = part.repeated_names(
            [{*each.arrays, *each.buffers, *each.aliases} if stages else each.arrays for each in made]
        )
        arrays = part.put_together([each.arrays for each in made], repeated)
    except ValueError as error:
        raise UsageError(f"the parts cannot be put together: {error}", ExitCode.DATA) from None
    buffers: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for number, each in enumerate(made):
        names = {name: part.name_in_part(name, number, repeated) for name in (*each.buffers, *each.aliases)}
        buffers |= {names[name]: its for name, its in each.buffers.items() if names[name] not in arrays}
        aliases |= {
            names[name]: part.name_in_part(first, number, repeated) for name, first in each.aliases.items()
        }
    steps = max((each.steps for each in made if each.steps is not None), default=None)
    return Made(arrays, buffers, aliases, part.combine_digests([each.digest for each in made]), steps)


def _label_of(client: ControlClient) -> str:
    run = read_status(client.request("status")["status"]).run
    return "" if run is None else run.label


def _check_all_there(labels: Sequence[str]) -> None:
    """Raise ValueError with a sentence if these runs' labels name parts, and not all of one model."""
    parts = [found for label in labels if (found := part.part_of(label)) is not None]
    if parts:
        part.check_all_there(parts)
