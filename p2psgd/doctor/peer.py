"""One line of the list of hosts, and all that this doctor has learned of the machine behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psgd.discovery.address import Address
from p2psgd.doctor.messages import Dialled
from p2psgd.doctor.outcome import REACHED, TELLING, UNANSWERED, Outcome
from p2psgd.doctor.session import Clock, Session

FAILURES_ENOUGH = 2  # dials of a machine that is known to run a doctor: the way there is closed


@dataclass
class Peer:
    """`outcome` and `words` are of the last dial; `hosts` the numeric addresses that the line leads to."""

    address: Address
    outcome: Outcome = Outcome.UNTRIED
    words: str = ""
    hosts: tuple[str, ...] = ()
    node: int | None = None  # that answers there
    name: str = ""
    other_run: bool = False  # the node there trains another run than the one asked for
    heard_node: bool = False  # the node there has dialled this doctor
    sessions: list[Session] = field(default_factory=list)
    over: bool = False  # no more dials
    _failures: int = 0  # since its doctor is known to run

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else str(self.address)

    def failed(self, outcome: Outcome, words: str) -> None:
        """A dial led nowhere."""
        if not (outcome in UNANSWERED and self.outcome in TELLING):
            self.outcome, self.words = outcome, words[:200]
        self._failures += self.present and outcome in UNANSWERED  # others may pass: a flood at its port, say

    def answered(self, session: Session) -> None:
        """A dial led to a doctor."""
        self.outcome, self.words = Outcome.DOCTOR, ""
        self.meet(session)

    def meet(self, session: Session) -> None:
        """Its doctor is there, on this session."""
        self.node, self.name = session.theirs.node, session.theirs.name
        self.sessions = [each for each in self.sessions if each.theirs.node == self.node] + [session]

    @property
    def present(self) -> bool:
        """A doctor runs there now."""
        return any(not session.closed for session in self.sessions)

    @property
    def settled(self) -> bool:
        """More dials would tell nothing new."""
        return self.over or self.outcome in REACHED or self._failures >= FAILURES_ENOUGH

    @property
    def dialled(self) -> Dialled:
        """What its doctor is told of these dials."""
        reached = self.outcome in REACHED
        return Dialled(reached=reached, final=self.settled, words="" if reached else self.words)

    @property
    def reaches_us(self) -> bool | None:
        """Its dials come here; None: not known."""
        if self.heard_node or any(not each.dialled for each in self.sessions):
            return True
        said = [each.their_dial for each in self.sessions if each.their_dial is not None]
        if any(each.reached for each in said):
            return True
        return False if any(each.final for each in said) else None

    @property
    def their_words(self) -> str:
        """Why its dials do not come here, as it tells."""
        said = [each.their_dial.words for each in self.sessions if each.their_dial is not None]
        return said[-1] if said else ""

    @property
    def clock(self) -> Clock | None:
        """The best that was measured."""
        clocks = [each.clock for each in self.sessions if each.clock is not None]
        return min(clocks, key=lambda clock: clock.round_trip_s, default=None)

    @property
    def sent_rate(self) -> float | None:
        """Bytes a second from here to there."""
        return next((each.sent_rate for each in self.sessions if each.sent_rate is not None), None)

    @property
    def received_rate(self) -> float | None:
        """And from there."""
        return next((each.received_rate for each in self.sessions if each.received_rate is not None), None)

    @property
    def measured(self) -> bool:
        """Or it will not be any more."""
        return any(each.measured or each.given_up or each.done_there for each in self.sessions)

    @property
    def satisfied(self) -> bool:
        """Nothing more is to be learned of it."""
        if self.outcome in (Outcome.NODE, Outcome.ITSELF):
            return True
        if not self.settled:
            return False
        if not self.present:
            return self.over or any(each.done_there for each in self.sessions)
        clocks = all(each.clock_tried for each in self.sessions if not each.closed)
        return self.reaches_us is not None and clocks and self.measured

    @property
    def released(self) -> bool:
        """Its doctor needs no more of this one."""
        return all(each.done_there or each.closed for each in self.sessions)
