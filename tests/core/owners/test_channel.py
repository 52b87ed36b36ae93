"""A channel keeps what it was given, in order, until it is covered or given up."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.owners.channel import Channel, Pending
from tests.wire.arrays import uint32


def pending(index: int) -> Pending:
    return Pending(words=uint32([index << 1]), magnitude=3, seen=True, steps=2, made=7.5, body=bytes(index))


@pytest.fixture
def channel() -> Channel:
    """Four contributions wait on it."""
    made = Channel(Origin(1, 1))
    for index in range(4):
        made.append(pending(index))
    return made


def numbers(channel: Channel) -> list[int]:
    return [each.number for each in channel.pending]


def assert_bytes(channel: Channel) -> None:
    assert channel.bytes == sum(each.bytes for each in channel.pending)


def test_contributions_are_numbered_from_1(channel: Channel) -> None:
    assert numbers(channel) == [1, 2, 3, 4]
    assert channel.last == 4
    assert_bytes(channel)


def test_each_is_sent_once_on_a_link(channel: Channel) -> None:
    assert [each.number for each in channel.unsent()] == [1, 2, 3, 4]
    assert list(channel.unsent()) == []
    channel.append(pending(9))
    assert [each.number for each in channel.unsent()] == [5]


def test_what_there_was_no_credit_for_is_sent_later(channel: Channel) -> None:
    assert [each.number for each in islice(channel.unsent(), 3)] == [1, 2, 3]
    # The third was handed out, but nobody has asked for more: it does not count as sent.
    assert [each.number for each in channel.unsent()] == [3, 4]


def test_on_a_new_link_all_that_is_not_covered_is_sent_again(channel: Channel) -> None:
    list(channel.unsent())
    channel.cover(2)
    channel.resend()
    assert [each.number for each in channel.unsent()] == [3, 4]


def test_what_is_covered_goes_once(channel: Channel) -> None:
    assert [each.number for each in channel.cover(2)] == [1, 2]
    assert channel.cover(2) == []
    assert channel.cover(1) == []
    assert numbers(channel) == [3, 4]
    assert_bytes(channel)
    assert [each.number for each in channel.cover(2**63)] == [3, 4]
    assert channel.bytes == 0


def test_a_number_is_never_used_again(channel: Channel) -> None:
    channel.cover(4)
    channel.append(pending(1))
    assert numbers(channel) == [5]


def test_what_others_were_given_is_kept_and_not_given_again(channel: Channel) -> None:
    for each in channel.to_redeal()[:2]:
        each.redealt = True
    assert [each.number for each in channel.to_redeal()] == [3, 4]
    assert channel.redealt_bytes == sum(each.bytes for each in list(channel.pending)[:2])
    assert numbers(channel) == [1, 2, 3, 4]
    assert [each.number for each in channel.cover(1)] == [1]


def test_what_others_were_given_may_be_forgotten_and_leaves_a_hole(channel: Channel) -> None:
    second, third = list(channel.pending)[1:3]
    second.redealt = third.redealt = True
    assert channel.forget_redealt() == [second, third]
    assert channel.redealt_bytes == 0
    assert [each.number for each in channel.unsent()] == [1, 4]
    assert_bytes(channel)
    assert [each.number for each in channel.cover(3)] == [1]


def test_a_trainer_waits_for_an_owner_that_lacks_more_than_so_many(channel: Channel) -> None:
    assert channel.waits(3)
    assert not channel.waits(4)
    channel.pending[0].redealt = True  # nobody waits for that owner to cover it
    assert not channel.waits(3)
    assert channel.waits(2)


def test_the_opposite_undoes_it_and_no_trainer_has_it() -> None:
    whole = Pending(
        words=uint32([4, 7]), magnitude=5, seen=True, steps=2, made=7.5, number=3, body=b"x", redealt=True
    )
    opposite = whole.opposite()
    assert opposite.words.tolist() == [5, 6]
    assert (opposite.magnitude, opposite.seen, opposite.redealt) == (5, False, False)
    assert (opposite.number, opposite.body) == (0, b"")
    assert np.array_equal(opposite.opposite().words, whole.words)


def test_a_part_begins_anew() -> None:
    whole = Pending(
        words=uint32([4, 7]), magnitude=5, seen=True, steps=2, made=7.5, number=3, body=b"x", redealt=True
    )
    part = whole.part(whole.words[1:])
    assert part.words.tolist() == [7]
    assert (part.magnitude, part.seen, part.number, part.body, part.redealt) == (5, True, 0, b"", False)
