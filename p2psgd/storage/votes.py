"""The votes of a node on disk (`p2psgd.core.view`): a small JSON file with its own hash.

With the members stand the names that people know them by: after a power cut of all, the status must show
which nodes are missing, and those have not sent their names again.

A node that has forgotten what it promised could help to decide two different views, so a file that is there
but cannot be read ends the node instead of counting as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2psgd.base.errors import ExitCode, UsageError, exit_code_of, words_of
from p2psgd.core.frontier import Origin
from p2psgd.core.view import Ballot, View, Votes
from p2psgd.storage.files import VOTES_NAME, becoming_another, giving_up, replacing
from p2psgd.wire.messages import MEMBERS_MAX, U64, Fields, Name

FORMAT: Final = 2
_BYTES_MAX: Final = 4 * 1024 * 1024  # two views of 1,024 members each, with their names, take less than half


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: U64
    members: Annotated[tuple[tuple[U64, U64], ...], Field(max_length=MEMBERS_MAX)]
    since: Annotated[tuple[U64, ...], Field(max_length=MEMBERS_MAX)]
    forbidden: Annotated[tuple[U64, ...], Field(max_length=MEMBERS_MAX)]
    cluster_id: U64


class _Votes(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[2]
    run: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    view: _View
    promised: tuple[U64, U64]
    accepted: tuple[U64, U64]
    value: _View | None
    names: Annotated[tuple[tuple[U64, Name], ...], Field(max_length=2 * MEMBERS_MAX)] = ()


def write_votes(state: Path, fingerprint: bytes, votes: Votes, names: Mapping[int, str]) -> None:
    """Replace the votes in the state directory, and the members' names as far as `names` has them.

    On disk when this returns. UsageError if they cannot be.
    """
    members = votes.view.incarnations.keys() | (
        set() if votes.value is None else votes.value.incarnations.keys()
    )
    fields = {
        "format": FORMAT,
        "run": fingerprint.hex(),
        "view": _pack_view(votes.view),
        "promised": votes.promised,
        "accepted": votes.accepted,
        "value": None if votes.value is None else _pack_view(votes.value),
        "names": sorted((node, names[node]) for node in members & names.keys()),
    }
    path = state / VOTES_NAME
    try:
        with replacing(path) as file:
            file.write(json.dumps({"sha256": _hash(fields), "votes": fields}).encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {words_of(error)}", exit_code_of(error)) from None


def read_votes(state: Path, fingerprint: bytes) -> tuple[Votes, dict[int, str]] | None:
    """Read the votes in the state directory and the members' names, None if there are none.

    UsageError if they are damaged or another run's: this node must then not vote.
    """
    found = _read(state)
    if found is None:
        return None
    if found.run != fingerprint.hex():
        raise UsageError(
            f"{state / VOTES_NAME} holds the votes of run {found.run[:16]}, this run is "
            f"{fingerprint.hex()[:16]}: give this run another directory with --state, or give up what is "
            f"here: {giving_up(state)}",
            ExitCode.CONFIGURATION,
        )
    votes = Votes(
        view=_unpack_view(found.view),
        promised=Ballot(*found.promised),
        accepted=Ballot(*found.accepted),
        value=None if found.value is None else _unpack_view(found.value),
    )
    return votes, dict(found.names)


def read_cluster_id(state: Path) -> int | None:
    """Read which run the node votes in, as its views name it; None before it is in any.

    UsageError if the votes are damaged.
    """
    found = _read(state)
    return found.view.cluster_id if found and found.view.number else None


def check_votes(state: Path) -> None:
    """Raise UsageError if there are votes in the state directory that are damaged, of any run."""
    _read(state)


def _read(state: Path) -> _Votes | None:
    path = state / VOTES_NAME
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read(_BYTES_MAX))
        if fields["sha256"] != _hash(fields["votes"]):
            raise ValueError("it does not have its hash")
        number = fields["votes"]["format"]
        if type(number) is int and number != FORMAT:
            raise UsageError(
                f"{path} has format {number}, this p2psgd reads format {FORMAT}: go on with the p2psgd that "
                f"wrote it, or give up what is here: {giving_up(state)}",
                ExitCode.CONFIGURATION,
            )
        return _Votes.model_validate_json(json.dumps(fields["votes"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {words_of(error)}", exit_code_of(error)) from None
    except (ValidationError, ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(
            f"{path} is damaged, and a node that has forgotten its votes must not vote: "
            f"{becoming_another(state)}",
            ExitCode.CONFIGURATION,
        ) from None


def _pack_view(view: View) -> Fields:
    return {
        "number": view.number,
        "members": view.members,
        "since": view.since,
        "forbidden": sorted(view.forbidden),
        "cluster_id": view.cluster_id,
    }


def _unpack_view(view: _View) -> View:
    members = tuple(Origin(*member) for member in view.members)
    return View(view.number, members, frozenset(view.forbidden), view.cluster_id, view.since)


def _hash(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
