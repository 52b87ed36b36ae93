"""The status of all parts of one machine: which daemons run, and what has become of the trainer command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from p2psgd.base.formatting import counted, printable
from p2psgd.observe.status import Part

PARTS_NAME: Final = "parts.json"  # in the state directory of all parts, while they run


class PartDaemon(BaseModel):
    """The daemon of one part; `pid`: None while it does not run. `ending`: how it ended last."""

    model_config = ConfigDict(extra="ignore")

    part: int
    pid: int | None = None
    restarts: int = 0
    ending: str = ""


class GroupTrainer(Part):
    """The trainer command of all parts; `crash`: how it crashed last."""

    command: str = ""
    running: bool = False
    ended: bool = False
    restarts: int = 0
    crash: str = ""
    restarting: bool = False


class PartsStatus(Part):
    """The process that runs the daemons of all parts of a machine. `trainer`: None if it was given none;
    `trouble`: why events of the trainer command could not be written, the last time.
    """

    pid: int
    parts: int
    daemons: Sequence[PartDaemon] = ()
    trainer: GroupTrainer | None = None
    trouble: str = ""


def parts_lines(status: PartsStatus) -> Iterator[str]:
    """Yield the lines that `p2psgd status` prints before those of each part."""
    running = sum(daemon.pid is not None for daemon in status.daemons)
    yield f"{counted(status.parts, 'part')} of one model on this machine, {running} running"
    trainer = status.trainer
    if trainer is not None:
        state = "running" if trainer.running else "done" if trainer.ended else "not running"
        restarts = f", {counted(trainer.restarts, 'restart')}" if trainer.restarts else ""
        crash = f"; {trainer.crash}" if trainer.crash else ""
        yield printable(f"trainer     {state}{restarts}{crash}: {trainer.command}")
    if status.trouble:
        yield printable(f"events      {status.trouble}")
    for daemon in status.daemons:
        if daemon.restarts:
            times = counted(daemon.restarts, "restart")
            yield printable(f"part {daemon.part}      {times} of its daemon; {daemon.ending}")
