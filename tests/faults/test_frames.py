"""Faults 18 to 23: frames that a broken network, a bug or a stranger could make, sent to a real daemon.

Whatever comes, the replica and the frontier stay as they were, the reason is told, and the daemon goes on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import msgpack
import numpy as np

from p2psgd.wire import codec
from p2psgd.wire.frames import HANDSHAKE_LIMITS, PREFIX, FrameType, link_limits, pack_frame
from p2psgd.wire.messages import MESSAGES, FrontierRow
from p2psgd.wire.reject import PeerError
from tests.daemons import until
from tests.faults.target import Target, forged_update, refusal
from tests.stranger import status_of
from tests.vectors import refused_vectors
from tests.wire.bombs import bombs

MIB = 1024 * 1024
KEYS = {frame_type: len(model.model_fields) for frame_type, model in MESSAGES.items()}


def test_fault_18_duplicated_and_reordered_frames_count_once(target: Target) -> None:
    chance = np.random.default_rng(18)
    before = target.coordinates()
    stranger = target.stranger(18)
    draw = functools.partial(chance.choice, stranger.weights, size=40, replace=False)
    sets = [(np.sort(draw()) << 1 | (number & 1)).astype(np.uint32) for number in range(6)]
    frames = stranger.updates(sets, origin=18)
    order = [*chance.permutation(6), *(5, 0, 0, 1, 1, 0, 2, 5, 3, 3, 2, 4, 5, 5), *chance.permutation(6)]
    applied = duplicates = 0
    for number in order:
        duplicates += number < applied
        applied += number == applied
    counted = target.status()["updates"]["duplicates"] + duplicates
    stranger.socket.sendall(b"".join(frames[number] for number in order))
    until(lambda: target.frontier().get(18) == 6, "all six are applied")
    until(lambda: target.status()["updates"]["duplicates"] == counted, "every duplicate is counted")
    expected = before.copy()
    for words in sets:
        expected[words >> 1] += np.where(words & 1, -1, 1).astype(np.int32)
    assert (target.coordinates() == expected).all()
    assert f"stranger-{18}" in target.daemon.linked()
    stranger.close()


def test_fault_19_another_update_under_the_same_number_is_refused_and_raises_an_alarm(target: Target) -> None:
    stranger = target.stranger(19)
    stranger.socket.sendall(forged_update(stranger, [1, 2]))
    until(lambda: target.frontier().get(19) == 1, "the first is applied")
    before = target.state()
    other = codec.digest_words(np.array([6], np.uint32), 1, stranger.key)
    stranger.close()
    assert target.code_of_refusal(20, status_of(FrontierRow(19, 1, 1, other))) == "digest"
    assert target.state() == before
    assert any("differ in their digest" in words for words in target.status()["alarms"])


def test_fault_20_a_flipped_bit_in_an_update_is_refused_and_the_right_one_still_taken(target: Target) -> None:
    before = target.state()
    stranger = target.stranger(20)
    frame = forged_update(stranger, [3, 4, 5])
    stranger.close()
    # Over TLS, where a connection takes longer, a bit of every byte: the next one of the next byte.
    for bit in range(8 * PREFIX.size, 8 * len(frame), 1 if target.certificates is None else 9):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        is_length = 48 <= bit // 8 - PREFIX.size < 52
        assert target.code_of_refusal(20, bytes(damaged)) == ("update length" if is_length else "checksum")
    assert target.state() == before
    stranger = target.stranger(20)
    stranger.socket.sendall(frame)
    until(lambda: target.frontier().get(20) == 1, "the undamaged one is applied")
    stranger.close()


def test_fault_20_a_flipped_bit_before_the_body_ends_the_link_before_anything_is_applied(
    target: Target,
) -> None:
    before = target.state()
    stranger = target.stranger(21)
    frame = forged_update(stranger, [3, 4, 5], digest=0)  # no good, should it ever be read as an update
    stranger.close()
    for bit in range(8 * PREFIX.size):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        following = frame * (link_limits(stranger.weights)[FrameType.UPDATE] // len(frame) + 2)
        target.code_of_refusal(21, bytes(damaged) + following)
    assert target.state() == before


def test_fault_21_bad_updates_change_nothing(target: Target) -> None:
    before = target.state()
    stranger = target.stranger(22)
    forged, far = functools.partial(forged_update, stranger), stranger.weights
    me = target.status()
    mine = {"node": int(me["id"], 16), "incarnation": me["incarnation"], "sequence": 10**6}
    bad = {
        "payload": [
            forged([far], weights=far + 1),
            forged([1, far + 1000], weights=far + 1001),
            forged([far - 1, far], weights=far + 1),  # all that unsorted or repeated could become: gaps are
            forged([2**31 - 1], weights=2**31),  # never negative
            forged([1, 2], count=1),
            forged([1, 2], count=3),
        ],
        "count": [
            forged([1], count=0),
            forged([1], count=codec.indices_max(far) + 1),
            forged([1], count=2**32 - 1),
        ],
        "magnitude": [
            forged([1], magnitude=0),
            forged([1], magnitude=2**20 + 1),
            forged([1], magnitude=2**32 - 1),
        ],
        "sequence": [forged([1], sequence=0)],
        "update length": [
            forged([1], length=0),
            forged([1], length=2**32 - 1),
            pack_frame(FrameType.UPDATE, bytes(63)),
        ],
        "encoding": [forged([1], encoding=0), forged([1], encoding=2), forged([1], zero=b"\0\0\0\0\0\0\1")],
        "digest": [forged([1], digest=0), forged([1], magnitude=2), forged([1, 3], count=2, digest=1)],
        "identity": [forged([1], **mine)],
    }
    stranger.close()
    for reason, frames in bad.items():
        for number, frame in enumerate(frames):
            assert target.code_of_refusal(22, frame) == reason, (reason, number)
    assert target.state() == before
    assert 22 not in target.frontier()


def test_fault_21_payloads_that_a_decoder_must_refuse_change_nothing(target: Target) -> None:
    before = target.state()
    stranger = target.stranger(23)
    stranger.close()
    tried = 0
    for vector in refused_vectors():
        with contextlib.suppress(PeerError, ValueError):
            codec.decode(vector.payload, vector.count, stranger.weights)
            continue  # bad only for the vector's own number of weights
        frame = forged_update(stranger, [1], payload=vector.payload or b"\0", count=vector.count)
        assert target.code_of_refusal(23, frame) in ("payload", "count"), vector.name
        tried += 1
    assert tried > 20
    assert target.state() == before


def test_fault_22_bad_lengths_and_types_are_refused_before_they_get_memory(target: Target) -> None:
    before = target.state()
    limits = link_limits(target.status()["run"]["weights"])
    bad: dict[str, list[tuple[int, int]]] = {
        "frame length": [(n, kind) for kind, most in limits.items() for n in (0, most + 1, 2**32 - 1)],
        "frame type": [(1, number) for number in (0, max(FrameType) + 1, 100, 255)],
        "frame order": [(1, kind) for kind in FrameType if kind not in limits],
    }

    def send_all() -> None:
        for reason, prefixes in bad.items():
            for length, kind in prefixes:
                assert target.code_of_refusal(24, PREFIX.pack(length, kind)) == reason, (length, kind)

    assert target.takes_less_memory(MIB, send_all)
    assert target.state() == before


def test_fault_22_before_the_greeting_hardly_anything_is_allowed(target: Target) -> None:
    bad: dict[str, list[tuple[int, int]]] = {
        "frame length": [
            (n, kind) for kind, most in HANDSHAKE_LIMITS.items() for n in (0, most + 1, 2**32 - 1)
        ],
        "frame type": [(1, number) for number in (0, max(FrameType) + 1, 100, 255)],
        "frame order": [(1, kind) for kind in FrameType if kind not in HANDSHAKE_LIMITS],
    }

    def send_all() -> None:
        for reason, prefixes in bad.items():
            for length, kind in prefixes:
                with target.connect() as connected:
                    assert refusal(connected, PREFIX.pack(length, kind)) == reason, (length, kind)

    assert target.takes_less_memory(MIB, send_all)


def bad_numbers() -> Iterator[bytes]:
    """FETCH whose `first` is not a number from 1 on."""
    for value in (True, -1, 0, 1.0, float("nan"), 2**63 * 2.0, "1", b"1", None, [1], {"a": 1}):
        yield msgpack.packb({"node": 1, "incarnation": 1, "first": value, "last": 9})
    first = b"\xa4node\x01\xabincarnation\x01\xa4last\x09\xa5first"
    yield b"\x84" + first + b"\xd4\x05\x00"  # an extension
    yield b"\x84" + first + b"\xd6\xff\0\0\0\1"  # a time
    yield b"\x85" + first + b"\x01\xa5first\x01"  # a key twice
    yield b"\x84" + first + b"\x01\x01"  # and a byte more


def test_fault_23_msgpack_bombs_are_refused_and_cost_no_memory(target: Target) -> None:
    """A REJECT that is a map of other keys may be of another version: it ends the link without an answer."""
    limits = link_limits(target.status()["run"]["weights"])
    kinds = sorted(MESSAGES.keys() & limits.keys(), key=lambda kind: limits[kind])
    if target.certificates is not None:  # where a connection takes longer: the least room, and the most
        kinds = [kinds[0], kinds[-1]]

    def send_all() -> None:
        for body in bad_numbers():
            assert target.code_of_refusal(25, pack_frame(FrameType.FETCH, body)) == "message", body
        for kind in kinds:
            for bomb in bombs(limits[kind], KEYS[kind]):
                code = target.code_of_refusal(25, pack_frame(kind, bomb))
                assert code == "message" or (code == "" and kind is FrameType.REJECT), (kind, bomb[:20])
        for bomb in bombs(HANDSHAKE_LIMITS[FrameType.HELLO], KEYS[FrameType.HELLO]):
            with target.connect() as connected:
                assert refusal(connected, pack_frame(FrameType.HELLO, bomb)) == "message", bomb[:20]

    before = target.state()
    assert target.takes_less_memory(MIB, send_all)
    assert target.state() == before
