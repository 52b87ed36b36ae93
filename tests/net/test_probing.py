"""Measuring links, with links of a known round trip and rate and an adjustable clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from p2psgd.core.events import LinkMeasured
from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.errors import PeerError
from p2psgd.net.probe import QUESTIONS, Probing
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.ring_messages import pack_probe, parse_probe

PATIENCE_S = 5.0
ANNA, BERT = Origin(1, 7), Origin(2, 7)
MBYTE = 1_000_000


@dataclass
class Links:
    """What is sent is answered after as long as a link takes; nothing is, while it is `broken`."""

    now: float = 100.0
    round_trip_s: float = 0.0002
    bytes_per_s: float = 12 * MBYTE
    broken: bool = False
    full: bool = False
    sent: list[tuple[Origin, bytes]] = field(default_factory=list)
    told: list[LinkMeasured] = field(default_factory=list)

    def send(self, peer: Origin, frame: bytes) -> None:
        self.sent.append((peer, frame))

    def takes_more(self, peer: Origin) -> bool:
        return not self.full

    def questions(self, peer: Origin) -> int:
        """So many, and no other byte, were sent to it."""
        return sum(to == peer for to, _ in self.sent)


class Bench:
    """One node's probing, driven until its questions are answered."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.links = Links()
        self.probing = Probing(
            self.links,
            self.links.told.append,
            timing=Timing(PATIENCE_S),
            now=lambda: self.links.now,
            wanted=wanted,
        )

    def pass_time(self, seconds: float = PATIENCE_S / 25, *, idle: bool = True) -> None:
        """One tick, and all the answers that come before the next."""
        links = self.links
        links.now += seconds
        before = len(links.sent)
        self.probing.pass_time(idle=idle)
        while len(links.sent) > before and not links.broken:
            before = len(links.sent)
            peer, frame = links.sent[-1]
            links.now += links.round_trip_s + len(frame) / links.bytes_per_s
            number, question = parse_probe(frame[PREFIX.size :])
            assert question
            self.probing.hear(peer, pack_probe(number)[PREFIX.size :])


@pytest.mark.parametrize("bytes_per_s", [0.1 * MBYTE, MBYTE, 12 * MBYTE, 125 * MBYTE])
@pytest.mark.parametrize("round_trip_s", [50e-6, 2e-3])
def test_round_trip_and_rate_are_found(round_trip_s: float, bytes_per_s: float) -> None:
    bench = Bench()
    bench.links.round_trip_s, bench.links.bytes_per_s = round_trip_s, bytes_per_s
    bench.probing.link_opened(ANNA)
    bench.pass_time()
    (told,) = bench.links.told
    assert told.peer == ANNA
    assert told.round_trip_us == pytest.approx(1e6 * (round_trip_s + 14 / bytes_per_s), abs=1)
    assert told.bytes_per_s == pytest.approx(bytes_per_s, rel=0.05)


def test_a_link_gets_less_than_a_mebibyte_and_a_slow_one_much_less() -> None:
    assert sum(QUESTIONS) < 1024 * 1024
    bench = Bench()
    bench.links.bytes_per_s = 0.1 * MBYTE
    bench.probing.link_opened(ANNA)
    bench.pass_time()
    assert len(bench.links.told) == 1
    assert sum(len(frame) for _, frame in bench.links.sent) < 20_000


def test_no_question_holds_up_what_comes_after_it_for_as_long_as_a_status_is_apart() -> None:
    for kib_per_s in range(100, 20_000, 100):
        bench = Bench()
        bench.links.bytes_per_s = 1024 * kib_per_s
        bench.probing.link_opened(ANNA)
        bench.pass_time()
        longest = max(len(frame) for _, frame in bench.links.sent) / bench.links.bytes_per_s
        assert longest <= Timing(PATIENCE_S).status_s, kib_per_s


def test_one_link_is_measured_at_a_time() -> None:
    bench = Bench()
    bench.links.broken = True
    bench.probing.link_opened(ANNA)
    bench.probing.link_opened(BERT)
    bench.pass_time()
    bench.pass_time()
    assert (bench.links.questions(ANNA), bench.links.questions(BERT)) == (1, 0)
    bench.probing.link_closed(ANNA)
    bench.pass_time()
    assert bench.links.questions(BERT) == 1


def test_a_link_that_is_known_is_measured_again_while_no_ring_runs_and_a_new_one_in_any_case() -> None:
    bench = Bench()
    bench.probing.link_opened(ANNA)
    bench.pass_time(idle=False)
    assert len(bench.links.told) == 1
    bench.pass_time(11 * PATIENCE_S)
    assert len(bench.links.told) == 1
    bench.pass_time(2 * PATIENCE_S, idle=False)
    assert len(bench.links.told) == 1
    bench.links.bytes_per_s = MBYTE
    bench.pass_time()
    assert len(bench.links.told) == 2
    assert bench.links.told[1].bytes_per_s == pytest.approx(MBYTE, rel=0.05)
    bench.probing.link_opened(ANNA)  # by another connection
    bench.pass_time(idle=False)
    assert len(bench.links.told) == 3


def test_who_is_asked_by_others_lets_them_finish_but_not_for_ever() -> None:
    bench = Bench()
    bench.probing.link_opened(ANNA)
    asked = 0
    while not bench.links.told:
        bench.probing.hear(BERT, pack_probe(3, padding=1)[PREFIX.size :])
        asked += 1
        bench.pass_time(0.01)
    assert bench.links.questions(BERT) == asked
    assert asked == pytest.approx(PATIENCE_S / 2 / 0.01, abs=2)


def test_a_question_without_an_answer_counts_as_slow_and_what_comes_too_late_for_nothing() -> None:
    bench = Bench()
    bench.probing.link_opened(ANNA)
    bench.links.broken = True
    bench.pass_time()
    while len(bench.links.sent[-1][1]) < 1000:
        number, _ = parse_probe(bench.links.sent[-1][1][PREFIX.size :])
        bench.links.now += 0.001
        bench.probing.hear(ANNA, pack_probe(number)[PREFIX.size :])
    late, _ = parse_probe(bench.links.sent[-1][1][PREFIX.size :])
    bench.pass_time(PATIENCE_S)
    assert not bench.links.told
    bench.pass_time()
    assert [told.round_trip_us for told in bench.links.told] == [1000]
    assert 0 < bench.links.told[0].bytes_per_s < QUESTIONS[4] / PATIENCE_S
    bench.probing.hear(ANNA, pack_probe(late)[PREFIX.size :])
    assert len(bench.links.told) == 1


def test_of_a_link_that_answers_nothing_nothing_is_told_and_the_next_gets_its_turn() -> None:
    bench = Bench()
    bench.links.broken = True
    bench.probing.link_opened(ANNA)
    bench.pass_time()
    bench.probing.link_opened(BERT)
    bench.pass_time(PATIENCE_S + 1)
    bench.links.broken = False
    bench.pass_time()
    assert [told.peer for told in bench.links.told] == [BERT]


def test_an_answer_that_nobody_asked_for_means_nothing() -> None:
    bench = Bench()
    bench.probing.link_opened(ANNA)
    bench.links.broken = True
    bench.pass_time()
    number, _ = parse_probe(bench.links.sent[0][1][PREFIX.size :])
    bench.probing.hear(BERT, pack_probe(number)[PREFIX.size :])
    bench.probing.hear(ANNA, pack_probe(number + 1)[PREFIX.size :])
    assert len(bench.links.sent) == 1


def test_a_link_that_is_full_gets_neither_questions_nor_answers() -> None:
    bench = Bench()
    bench.links.full = True
    bench.probing.link_opened(ANNA)
    bench.pass_time()
    bench.probing.hear(ANNA, pack_probe(3, padding=1)[PREFIX.size :])
    assert not bench.links.sent
    bench.links.full = False
    bench.pass_time()
    assert len(bench.links.told) == 1


def test_in_a_run_that_goes_by_ids_nothing_is_asked_and_a_question_refused() -> None:
    bench = Bench(wanted=False)
    bench.probing.link_opened(ANNA)
    bench.pass_time()
    assert not bench.links.sent
    with pytest.raises(PeerError, match="measures no links") as caught:
        bench.probing.hear(ANNA, pack_probe(3, padding=1)[PREFIX.size :])
    assert caught.value.reason == "ring"
