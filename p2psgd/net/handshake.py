"""The handshake of two nodes, and the nodes of other runs that it has refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from p2psgd.core.frontier import INCARNATION_MAX, Origin, parse_node_id
from p2psgd.core.run_spec import RunSpec, name_run
from p2psgd.net.tls import CertifiedPeer
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# The greeting: may these two be linked, and which of two connections between them stays. Pure.
#
# The dialer sends HELLO, the other side answers WELCOME or REJECT with a reason. Both sides apply the same
# rule when two connections exist between the same two nodes, so they keep the same one without talking about
# it.


DOCTOR: Final = "doctor"  # the mode of a HELLO that only asks


class BehindError(PeerError):
    """An incarnation began that is not above `newest`, the highest one known of its node."""

    def __init__(self, newest: int, words: str) -> None:
        super().__init__(RejectCode.BEHIND, words)
        self.newest = newest


def make_hello(spec: RunSpec, me: Origin, name: str, rank: tuple[int, int] | None = None) -> Hello:
    """Build the greeting of this node; `rank` is its (i, n) of the data, None if it was given none."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        node=me.node,
        incarnation=me.incarnation,
        name=name,
        run=spec.fingerprint,
        weights=spec.weights,
        quantum_log2=spec.quantum_log2,
        mode=spec.mode,
        label=spec.label,
        rank="" if rank is None else "{}/{}".format(*rank),
    )


def check_hello(
    ours: Hello,
    theirs: Hello,
    newest_incarnation: int,
    certified: CertifiedPeer | None = None,
    *,
    linked_incarnation: int = 0,
) -> None:
    """Raise PeerError, whose code becomes that of the REJECT, if the two nodes cannot be linked.

    `newest_incarnation` is the highest one known of the peer's node id, `linked_incarnation` the one that is
    linked now, 0 if none; `certified` is the node that its certificate names, None in plaintext. The
    parser has judged the protocol number of `theirs`.
    """
    if certified is not None:
        check_certificate(certified, theirs)
    if theirs.mode == DOCTOR:
        run = name_run(ours.run, ours.label, ours.mode)
        raise PeerError(RejectCode.DOCTOR, f"{ours.name} runs there, run {run} of {ours.weights:,} weights")
    if theirs.node == ours.node and theirs.incarnation == ours.incarnation:
        raise PeerError(RejectCode.SELF)
    if theirs.node == ours.node:
        raise PeerError(
            RejectCode.IDENTITY,
            f"{ours.name} has the same node id: is it a copied state directory? give every node its own",
        )
    if parse_node_id(theirs.name) is not None:
        raise PeerError(
            RejectCode.NAME,
            f"the name {theirs.name} has the form of a node's id: give it another one with --name",
        )
    if theirs.incarnation > INCARNATION_MAX:
        words = f"the incarnation {theirs.incarnation} of {theirs.name} is above {INCARNATION_MAX}"
        raise PeerError(RejectCode.AHEAD, f"{words}, where no clock ever gets: set that machine's clock")
    if theirs.incarnation < linked_incarnation:
        raise PeerError(
            RejectCode.SUPERSEDED,
            f"{theirs.name} has been started again since: only its newest life is listened to",
        )
    if theirs.incarnation < newest_incarnation:
        raise behind(theirs.name, theirs.incarnation, newest_incarnation)
    if theirs.run != ours.run:
        raise PeerError(RejectCode.RUN, describe_difference(ours, theirs))


def behind(name: str, incarnation: int, newest: int) -> BehindError:
    """Build the error that becomes the REJECT of an incarnation of node `name` when a newer one, which is not
    linked, is known.
    """
    return BehindError(
        newest,
        f"a later life of {name} than its incarnation {incarnation} is known, {newest}, which is not linked: "
        "it is to go on above that",
    )


def check_certificate(certified: CertifiedPeer, theirs: Hello) -> None:
    """Raise PeerError if the peer's certificate names another node than its greeting."""
    if (certified.node, certified.name) != (theirs.node, theirs.name):
        raise PeerError(
            RejectCode.CERTIFICATE,
            f"{theirs.name}, id {theirs.node:016x}, came with the certificate of {certified.name}, id "
            f"{certified.node:016x}: give every node its own, from `p2psgd ca issue`",
        )


def describe_difference(ours: Hello, theirs: Hello) -> str:
    """Describe in one sentence both fingerprints, theirs first, whatever is known to differ, and what
    to do.
    """
    fields = ("weights", "quantum_log2", "label")
    differing = [
        f"{name} {getattr(theirs, name)} and {getattr(ours, name)}"
        for name in fields
        if getattr(theirs, name) != getattr(ours, name)
    ]
    advice = "start all nodes with the same recipe or script"
    if theirs.mode != ours.mode:
        differing.insert(0, f"{theirs.name} in mode {theirs.mode}, {ours.name} in mode {ours.mode}")
        advice += ", and the same mode, payload, rule and order"
    start = (
        "the weights to start from (take the same seed, such as torch.manual_seed(1), or the same file of"
        ' --initial, or say attach(..., initial="first") on all nodes)'
    )
    what = "; ".join(differing) or f"the tensors' shapes, {start} or two_nodes differ"
    return (
        f"{theirs.name} and {ours.name} train different runs: {what}; {advice} (fingerprints "
        f"{theirs.run.hex()[:16]} and {ours.run.hex()[:16]})"
    )


def newer_stays(*, ours: int, theirs: int, held_dialled: bool, new_dialled: bool) -> bool:
    """Return whether the new one of two connections between nodes `ours` and `theirs` replaces the held one.

    Dialled by the same side: that side has lost the held one, so the new one stays. Dialled by different
    sides: the one that the lower node id dialled stays.
    """
    if held_dialled == new_dialled:
        return True
    lower_is_ours = ours < theirs
    return new_dialled == lower_is_ours


# ----------------------------------------------------------------------------
# Nodes of other runs that were refused, remembered for people: their names and how they differ.
#
# Such a node ends after one failure timeout, and what is left is a refused connection that explains nothing.


STRANGERS_MAX: Final = 16  # node ids cost nobody anything


@dataclass(frozen=True, slots=True)
class Stranger:
    """A node of another run, refused last at `at`, seconds, monotonic, with these words."""

    node: int
    name: str
    at: float
    words: str


class ForeignNodes:
    """The first STRANGERS_MAX nodes of other runs; `met` is called once for each, with node id
    and sentence.
    """

    def __init__(self, met: Callable[[int, str], None]) -> None:
        self._met = met
        self._known: dict[int, Stranger] = {}

    def __iter__(self) -> Iterator[Stranger]:
        return iter(self._known.values())

    def refused(self, theirs: Hello, words: str, now: float) -> None:
        """Remember that a node has said HELLO for another run."""
        new = theirs.node not in self._known
        if new and len(self._known) >= STRANGERS_MAX:
            return
        self._known[theirs.node] = Stranger(theirs.node, theirs.name, now, words)
        if new:
            self._met(theirs.node, words)

    def linked(self, node: int) -> None:
        """Forget a node, which is of this run now."""
        self._known.pop(node, None)
