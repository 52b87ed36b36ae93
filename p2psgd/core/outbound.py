"""What a replica orders while it handles one event, and what its links may still be given."""

from __future__ import annotations

from typing import Final

from p2psgd.core.effects import Effect, NextTurn, ReportDrained, Send, SendNumbers
from p2psgd.core.peer import Peer
from p2psgd.wire.messages import Message, pack_message

CREDIT_BYTES: Final = (
    1024 * 1024
)  # 80 ms of a 100 Mbit/s link: enough to keep it full between two turns of the loop


class Outbound:
    """Collects effects in order; spends a peer's credit with every frame."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self._effects: list[Effect] = []
        self._turn_is_wanted = self._turn_is_ordered = False

    def order(self, effect: Effect) -> None:
        """One more thing to do."""
        self._effects.append(effect)

    def order_turn(self) -> None:
        """Have TurnPassed said in the next turn of the loop, once."""
        self._turn_is_wanted = True

    def turn_passed(self) -> None:
        """It was said."""
        self._turn_is_wanted = self._turn_is_ordered = False

    def send(self, peer: Peer, frame: bytes) -> None:
        """Give a whole frame to a peer's link, whatever its credit."""
        self._effects.append(Send(peer.origin, frame))
        self._spend(peer, len(frame))

    def send_numbers(self, peer: Peer, head: bytes, numbers: memoryview) -> None:
        """The same of a frame whose numbers stay where they are (SendNumbers)."""
        self._effects.append(SendNumbers(peer.origin, head, numbers))
        self._spend(peer, len(head) + numbers.nbytes)

    def _spend(self, peer: Peer, frame_bytes: int) -> None:
        peer.credit -= frame_bytes
        if peer.credit <= 0 and not peer.draining:
            peer.draining = True
            self._effects.append(ReportDrained(peer.origin))

    def say(self, peer: Peer, message: Message) -> None:
        """Send a control message."""
        self.send(peer, pack_message(message))

    def refill(self, peer: Peer) -> None:
        """What it was given has left our memory."""
        peer.credit, peer.draining = self.credit_bytes, False

    def take(self) -> list[Effect]:
        """All that was ordered since the last call."""
        if self._turn_is_wanted and not self._turn_is_ordered:
            self._turn_is_ordered = True
            self._effects.append(NextTurn())
        effects, self._effects = self._effects, []
        return effects
