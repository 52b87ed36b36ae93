"""What the log holds, what leaves it first, and what happens as it fills."""

from __future__ import annotations

import pytest

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.frontier import Origin
from p2psgd.core.retention import EVICT, STALL, TRIM_FOR_JOINER, WARN, Retention
from p2psgd.core.state import State
from p2psgd.core.update_log import ENTRY_BYTES, UpdateLog
from p2psgd.core.view import View
from p2psgd.wire.messages import ConfirmedRow, FrontierRow
from tests.core.cluster import by_origin, initial_coordinates, make_spec

ME, A, B = Origin(1, 1), Origin(2, 1), Origin(3, 1)
FRAME_BYTES = 280
ENTRY = FRAME_BYTES + ENTRY_BYTES  # 400 bytes in use
CAPACITY = 100 * ENTRY
THREE = View(1, (ME, A, B))


class Setting:
    """A log that holds a hundred frames, and what the others have acknowledged."""

    def __init__(self, view: View = THREE, mode: str = "async") -> None:
        log = UpdateLog(budget_bytes=CAPACITY)
        self.state = State(make_spec(mode=mode), ME, initial_coordinates(), log)
        self.log = log
        self.acks = Acknowledgements(ME)
        self.saved: dict[Origin, int] = {}
        self.retention = Retention(self.state, acks=self.acks, saved=self.saved)
        self.view = view

    def append(self, origin: Origin, count: int) -> None:
        for _ in range(count):
            sequence = self.state.frontier.sequence(origin) + 1
            self.log.append(origin, sequence, bytes(FRAME_BYTES))
            self.state.frontier.advance(origin, sequence, 0, 1)

    def acknowledge(self, member: Origin, origin: Origin, applied: int, durable: int = 0) -> None:
        self.acks.on_status(
            member, by_origin([FrontierRow(*origin, applied, 0, durable=durable)]), 1, {}, 0.0
        )

    def look(self, *, ready: bool = True) -> Retention:
        own_bytes = FRAME_BYTES * self.state.frontier.sequence(ME)
        self.retention.look(self.view, ready=ready, own_bytes=own_bytes)
        return self.retention


def test_nothing_leaves_before_room_is_needed() -> None:
    setting = Setting()
    setting.append(A, 75)
    for member in (A, B):
        setting.acknowledge(member, A, 75)
    setting.look()
    assert len(setting.log) == 75
    setting.append(A, 1)
    setting.look()
    assert len(setting.log) == 70


def test_only_what_all_other_members_have_leaves() -> None:
    setting = Setting()
    setting.append(A, 80)
    setting.acknowledge(A, A, 80)
    setting.look()
    assert setting.log.trimmed_to(A) == 0
    setting.acknowledge(B, A, 4)
    setting.look()
    assert setting.log.trimmed_to(A) == 4
    setting.acks.link_closed(B)
    rows = by_origin([FrontierRow(*A, 80, 0, least=7)])
    setting.acks.on_status(A, rows, 1, {B.node: ConfirmedRow(*B, 1)}, 0.0)
    setting.look()
    assert setting.log.trimmed_to(A) == 7


@pytest.mark.parametrize(("ready", "view"), [(False, THREE), (True, View())])
def test_who_is_not_ready_or_knows_no_view_lets_nothing_go(ready: bool, view: View) -> None:
    setting = Setting(view)
    setting.append(A, 90)
    for member in (A, B):
        setting.acknowledge(member, A, 90)
    setting.look(ready=ready)
    assert len(setting.log) == 90


def test_what_all_have_on_disk_leaves_first_and_the_rest_is_counted() -> None:
    setting = Setting()
    setting.append(A, 40)
    setting.append(B, 40)
    for member in (A, B):
        setting.acknowledge(member, A, 40)
        setting.acknowledge(member, B, 40, durable=8)
    setting.saved |= {B: 6}
    setting.look()
    assert setting.log.trimmed_to(B) == 6  # the older of A stay
    assert setting.log.trimmed_to(A) == 4
    assert setting.log.lost_durability == 4


def test_a_member_whose_new_life_has_acknowledged_nothing_pins_everything() -> None:
    setting = Setting()
    setting.append(A, 80)
    for member in (A, B):
        setting.acknowledge(member, A, 80)
    setting.view = View(2, (ME, A, Origin(B.node, 2)))
    setting.look()
    assert len(setting.log) == 80
    setting.retention.trim(THREE, TRIM_FOR_JOINER)  # by the view that ends
    assert len(setting.log) == 25


def test_holders_are_named_the_worst_first_and_only_from_the_warning_on() -> None:
    setting = Setting()
    setting.append(ME, 10)
    setting.acknowledge(A, ME, 10)
    setting.append(A, 69)
    setting.acknowledge(A, A, 69)
    assert setting.look().holders == []
    setting.append(A, 1)
    assert setting.look().fullness == pytest.approx(WARN)
    assert setting.retention.holders == [B]  # A lacks one update


@pytest.mark.parametrize(
    ("unacknowledged", "fullness"), [(10, 0.6), (13, 0.78), (14, 0.84), (16, 0.96), (20, 1.2)]
)
def test_own_updates_may_take_half_of_the_budget_by_the_number_of_members(
    unacknowledged: int, fullness: float
) -> None:
    """Of 40,000 bytes 6,667 for each of three, and an update takes 400."""
    setting = Setting()
    setting.append(ME, 40)
    setting.acknowledge(A, ME, 40)
    setting.acknowledge(B, ME, 40 - unacknowledged)
    retention = setting.look()
    assert retention.fullness == pytest.approx(fullness)
    assert (retention.fullness >= WARN) == (unacknowledged >= 14) == bool(retention.holders)
    assert (retention.fullness >= EVICT) == (unacknowledged >= 16)
    assert (retention.fullness >= STALL) == (unacknowledged >= 16)


@pytest.mark.parametrize(("mode", "fullness"), [("async", 2.4), ("owners", 0.6), ("owners-rounds", 0.6)])
def test_in_a_crowd_the_owners_share_the_budget_as_only_they_publish(mode: str, fullness: float) -> None:
    """The log has 40,000 bytes and five updates take 2,000. The share of one of six owners is 3,333 bytes,
    and that of one of 24 members 833.
    """
    crowd = View(1, tuple(Origin(node, 1) for node in range(1, 25)))
    setting = Setting(crowd, mode)
    setting.append(ME, 5)
    assert setting.look().fullness == pytest.approx(fullness)


def test_what_has_left_the_log_does_not_count_as_unacknowledged() -> None:
    setting = Setting()
    setting.append(ME, 60)
    setting.acknowledge(A, ME, 60)
    setting.acknowledge(B, ME, 60)
    setting.log.trim(lambda origin: 60, lambda origin: 60, share=0.0)
    setting.view = View(2, (ME, A, Origin(B.node, 2)))
    assert setting.look().fullness == 0.0


def test_alone_there_is_no_own_share() -> None:
    setting = Setting(View(1, (ME,)))
    setting.append(ME, 74)
    assert setting.look().fullness == pytest.approx(0.74)


def test_there_is_room_for_a_peers_update_up_to_the_budget() -> None:
    setting = Setting()
    setting.append(A, 99)
    assert setting.state.log.room(FRAME_BYTES)
    assert not setting.state.log.room(FRAME_BYTES + 1)
    setting.append(A, 1)
    assert not setting.state.log.room(0)


@pytest.mark.parametrize("saved", [0, 8])
def test_a_node_alone_in_its_view_asks_nobody(saved: int) -> None:
    setting = Setting(View(2, (ME,)))
    setting.append(A, 80)
    setting.saved |= {A: saved}
    setting.look()
    assert setting.log.trimmed_to(A) == 10
    assert setting.log.lost_durability == 10 - saved
