"""Makes the parts of a replica, each with those that it works on."""

from __future__ import annotations

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.budget import Budget
from p2psgd.core.feeding import Feeder
from p2psgd.core.joining import Joining
from p2psgd.core.membership import Membership
from p2psgd.core.outbound import Outbound
from p2psgd.core.parts import Parts
from p2psgd.core.repair import Repair
from p2psgd.core.state import State
from p2psgd.core.sweeping import Sweeping
from p2psgd.core.timing import Timing
from p2psgd.core.votes import Votes
from p2psgd.wire.mode import parse_mode


def assemble(
    state: State, *, timing: Timing, founders: int, votes: Votes, credit_bytes: int, now: float
) -> Parts:
    """Those of a replica with this content that begins its life now."""
    me, out, names = state.me, Outbound(credit_bytes), dict[int, str]()
    return Parts(
        me=me,
        timing=timing,
        state=state,
        peers={},
        names=names,
        acks=Acknowledgements(me),
        membership=Membership(
            me,
            founders=founders,
            two_nodes=state.spec.two_nodes,
            timing=timing,
            votes=votes,
            now=now,
            names=names,
        ),
        joining=Joining(me, timing, now),
        budget=Budget(state),
        sweeping=Sweeping(state, timing, now),
        out=out,
        feeder=Feeder(state, out, unasked=not parse_mode(state.spec.mode).ring),
        repair=Repair(patience_s=timing.patience_s),
    )
