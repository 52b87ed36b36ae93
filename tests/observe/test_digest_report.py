from __future__ import annotations

from typing import Any

import pytest

from p2psgd.cli.digest import Scrub, find_fault, render_digest
from p2psgd.core.frontier import Origin
from p2psgd.core.read_model import MemberView, PeerView, ScrubView
from p2psgd.core.view import View
from p2psgd.observe.digest import DigestReport, report_digest
from p2psgd.wire.messages import FrontierRow
from tests.observe.replications import replica_view

CLEAN = ScrubView(count=3, quarantines=0, running=False, clean=True, age_s=2.0)


def row(node: int, sequence: int, digest: int | None = None) -> FrontierRow:
    return FrontierRow(node, 1, sequence, 1000 * node + sequence if digest is None else digest)


def peer(rows: list[FrontierRow] | None, *, node: int = 2, name: str = "node-2") -> PeerView:
    frontier = None if rows is None else {Origin(row.node, row.incarnation): row for row in rows}
    return PeerView(
        Origin(node, 1), name, ready=True, barred=False, view=4, silent_s=0.1, lag=0, frontier=frontier
    )


def away(name: str) -> MemberView:
    return MemberView(Origin(9, 1), name, linked=False, ready=False, heard_s=None, lag=None)


def report(
    *peers: PeerView, members: tuple[MemberView, ...] = (), view: int = 4, **changes: Any
) -> DigestReport:
    values = {"digest": 0xABC, "frontier": (row(1, 10), row(2, 20)), "scrub": CLEAN}
    linked = {Origin(number, 1): each for number, each in enumerate(peers)}
    decided = View(view, (Origin(1, 10), Origin(2, 20)))
    return report_digest(replica_view(peers=linked, members=members, view=decided, **{**values, **changes}))


@pytest.mark.parametrize(
    ("rows", "verdict", "lacks", "ahead"),
    [
        ([row(1, 10), row(2, 20)], "identical", 0, 0),
        ([row(1, 7), row(2, 20)], "agrees", 3, 0),
        ([row(1, 10), row(2, 25), row(3, 4)], "agrees", 0, 9),
        ([row(2, 20)], "agrees", 10, 0),
        ([], "agrees", 30, 0),
        ([row(1, 10), row(2, 20, digest=1)], "differs", 0, 0),
        ([row(1, 4, digest=1), row(2, 20, digest=1)], "differs", 6, 0),
        ([row(1, 4, digest=1), row(2, 20)], "agrees", 6, 0),  # at 4 ours is not known any more
        (None, "unknown", 0, 0),
    ],
)
def test_replicas_are_compared_where_both_have_applied_the_same(
    rows: list[FrontierRow] | None, verdict: str, lacks: int, ahead: int
) -> None:
    (told,) = report(peer(rows)).peers
    assert (told.verdict, told.lacks, told.ahead) == (verdict, lacks, ahead)


@pytest.mark.parametrize(
    ("view", "bootstrap_expect", "fault"),
    [
        (0, 3, "the cluster has not formed: there is nobody to compare with"),
        (0, 1, ""),
        (1, 3, ""),
    ],
)
def test_before_the_run_is_founded_nothing_is_proved(view: int, bootstrap_expect: int, fault: str) -> None:
    assert find_fault(report(view=view, bootstrap_expect=bootstrap_expect)) == fault


def test_another_life_of_a_node_is_another_origin() -> None:
    (told,) = report(peer([FrontierRow(1, 2, 10, 5), row(1, 10), row(2, 20)])).peers
    assert (told.verdict, told.ahead) == ("agrees", 10)


def test_a_difference_is_named_and_fails_also_when_its_peer_is_not_listed() -> None:
    wrong = peer([row(2, 20, digest=1)], node=3, name="node-3")
    told = report(*[peer([row(1, 10), row(2, 20)])] * 300, wrong)
    assert (len(told.peers), told.peers_total, told.differ_total) == (256, 301, 1)
    assert find_fault(told) == "node-3: another replica"
    assert "45 more are not listed" in render_digest(told)
    text = render_digest(report(wrong))
    assert "node-3: DIFFERS at update 20 of 0000000000000002/1 (linked, ready, view 4, lacks" in text


@pytest.mark.parametrize(
    ("clean", "fault"),
    [
        (True, ""),
        (False, "the weights in memory are not what the digest says"),
        (None, "no scrub of the memory has finished"),
    ],
)
def test_only_a_clean_scrub_is_sound(clean: bool | None, fault: str) -> None:
    scrub = ScrubView(count=1, quarantines=0, running=False, clean=clean, age_s=1.0)
    assert find_fault(report(scrub=scrub)) == fault


def test_whoever_was_not_compared_is_a_fault_and_named() -> None:
    gone = tuple(away(f"node-{number}") for number in range(3, 23))
    silent = peer(None)
    equal = peer([row(1, 10), row(2, 20)])
    assert find_fault(report(equal, silent)) == "node-2: not compared"
    assert find_fault(report(*[equal] * 300, members=gone)) == (
        "node-3, node-4, node-5, node-6, node-7, node-8, node-9, node-10 and 12 more: not compared"
    )


def test_the_text_has_a_line_for_each_fact() -> None:
    text = render_digest(report(peer([row(1, 7), row(2, 20)]), members=(away("x\x1b"),)))
    assert text.splitlines() == [
        "node-1: digest 0000000000000abc after 30 updates, view 4, ready",
        "scrub     clean: the digest was recomputed from the weights in memory and is the same (2 s ago)",
        "peer      x\\x1b: not compared, since it is not linked: ask it there",
        "peer      node-2: equal where both have applied the same (linked, ready, view 4, "
        "lacks 3 updates of ours)",
    ]
    assert render_digest(report()).endswith("none: there is nothing to compare with")


class SlowScrub:
    """A daemon whose scrub ends after so many requests."""

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.asked: list[bool] = []

    def request(self, op: str, *, scrub: bool) -> dict[str, Any]:
        assert op == "digest"
        self.asked.append(scrub)
        count = 5 + (len(self.asked) > self.requests)
        scrubbed = ScrubView(count, 0, running=True, clean=True, age_s=9.0)
        return {"digest": report(scrub=scrubbed).model_dump()}


def test_a_scrub_is_asked_for_once_and_waited_for() -> None:
    daemon = SlowScrub(3)
    assert not find_fault(Scrub(daemon).report())  # type: ignore[arg-type] # the one call it makes
    assert daemon.asked == [True, False, False, False]


def test_what_an_earlier_scrub_found_does_not_count() -> None:
    told = Scrub(SlowScrub(10**9), failure_timeouts=0.0).report()  # type: ignore[arg-type] # the one call it makes
    assert find_fault(told) == "no scrub of the memory has finished"
    assert "none has finished since it was asked for" in render_digest(told)


def ring_row(view: int, number: int, digest: int = 7) -> FrontierRow:
    return FrontierRow(0, 0, view << 32 | number, digest, steps=number)


@pytest.mark.parametrize(
    ("theirs", "verdict", "words"),
    [
        (ring_row(2, 1402), "identical", "node-2: identical (linked"),
        (ring_row(2, 1400), "agrees", "lacks 2 rounds of ours"),
        (ring_row(3, 1403), "agrees", "has 1 round that we lack"),
        (ring_row(1, 1402), "agrees", "lacks 1 round of ours"),  # of an earlier view
        (ring_row(2, 1402, digest=8), "differs", "DIFFERS at round 1402 ("),
    ],
)
def test_of_a_dense_ring_rounds_are_counted(theirs: FrontierRow, verdict: str, words: str) -> None:
    answer = report(peer([theirs]), view=2, frontier=(ring_row(2, 1402),))
    assert answer.peers[0].verdict == verdict
    text = render_digest(answer)
    assert "after 1,402 rounds, view 2" in text
    assert words in text
    assert "update" not in text
